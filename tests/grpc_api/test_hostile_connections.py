"""Connections that take no answers, say nothing, or hold the places of others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from struct import pack
from typing import Any

import numpy as np
import pytest

from app.grpc_api.rpc_request import address_of_peer
from tests.grpc_api.conftest import GrpcServer, StartGrpc, becomes, put_row, used
from tests.grpc_api.http2 import (
    CHECK,
    CHUNK,
    HEADERS,
    INFER,
    PREFACE,
    RESET,
    SETTINGS,
    Http2,
    frame,
    framed,
    header,
)
from tests.grpc_api.messages import Channel, example, output, pb, request

BUDGET = 64 << 20
ROOM = 2 * BUDGET
"""More than the server may come to hold: its budget, and as much again for copies on their way and for freed memory
that the allocator keeps in each thread's arena. The callers here ask for far more than that."""
ANSWER = 4 << 20


@pytest.fixture(scope="module")
def small(start_grpc: StartGrpc) -> Iterator[GrpcServer]:
    """A server with little room: 64 MiB, in which four messages fit, and 16 calls."""
    flags = (
        "--memory-budget", str(BUDGET), "--grpc-max-message-bytes", "4MiB", "--max-output-bytes", "4MiB",
        "--answer-timeout", "4", "--header-timeout", "2", "--grpc-max-connections", "12", "--deadline", "8",
    )  # fmt: skip
    with start_grpc(*flags) as server:
        put_row(server.http)
        yield server
        assert "Traceback" not in server.http.log_text()


def is_right(server: GrpcServer) -> bool:
    with Channel(server.address) as channel:
        status, answer = channel.attempt("ModelInfer", example())
        return status == "OK" and output(answer, np.float32).tolist() == [[2, 3], [0, 1]]


def ask(connection: Http2, number: int, message: bytes) -> None:
    """A call on a stream of its own."""
    stream = 1 + 2 * number
    connection.open(stream)
    connection.push(stream, message, 5, end=True)


def test_answers_that_nobody_takes_stay_charged_and_their_connection_is_reset(small: GrpcServer) -> None:
    rows = np.zeros((ANSWER // (1 << 16) - 1, 1), np.int64)
    message = framed(request({"indices": ("INT64", rows)}, "row").SerializeToString())
    before = small.http.memory()
    with Http2(small.port, window=0) as connection:
        for number in range(8):
            ask(connection, number, message)
        assert becomes(lambda: used(small.http) > 4 * ANSWER)
        with suppress(ConnectionError):  # it may be reset before all are sent
            for number in range(8, 100):
                ask(connection, number, message)
        assert small.http.memory() - before < ROOM
        assert connection.wait_closed(120)
    assert becomes(lambda: used(small.http) == 0)
    assert becomes(lambda: is_right(small))
    assert "its caller does not read responses" in small.http.log_text()


@pytest.mark.slow
def test_an_answer_that_is_taken_slowly_is_sent_whole(small: GrpcServer) -> None:
    rows = np.zeros((30, 1), np.int64)
    message = framed(request({"indices": ("INT64", rows)}, "row").SerializeToString())
    with Http2(small.port, window=0) as connection:
        connection.open(1)
        assert connection.push(1, message, 5, end=True)
        for _ in range(14):
            connection.send(frame(8, 0, 1, pack(">I", 20_000)))
            assert not connection.wait_closed(0.7)
        connection.send(frame(8, 0, 1, pack(">I", 30 << 16)))
        assert becomes(lambda: used(small.http) == 0)
        assert not connection.closed


@pytest.mark.parametrize("path", [CHECK, INFER])
def test_parts_of_messages_fit_the_budget_and_health_is_told_meanwhile(small: GrpcServer, path: str) -> None:
    before = small.http.memory()
    with Http2(small.port) as connection:
        for number in range(80):
            stream = 1 + 2 * number
            connection.open(stream, path)
            connection.push(stream, framed(bytes(3 << 20))[:CHUNK])
            if number % 10 == 9:
                with Channel(small.address) as channel:
                    assert channel.call("ServerReady", pb.ServerReadyRequest(), timeout=60).ready
        for _ in range(100):
            for stream in list(connection.windows)[1:]:
                connection.push(stream, bytes(CHUNK))
        assert small.http.memory() - before < ROOM
        assert path == INFER or is_right(small)  # calls without a key take no place of others
    assert becomes(lambda: used(small.http) == 0)
    assert becomes(lambda: is_right(small))


def test_a_message_of_a_call_without_a_key_is_short(small: GrpcServer) -> None:
    with Channel(small.address) as channel:
        call: Any = channel.channel.unary_unary(CHECK)
        with pytest.raises(Exception, match="message is larger than the limit of 16384 bytes"):
            call(b"\x0a\x80\x80\x04" + b"a" * (1 << 16), timeout=20)


def test_connections_that_say_nothing_are_closed_and_counted(small: GrpcServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", small.port), 10) for _ in range(11)]
    begun = [socket.create_connection(("127.0.0.1", small.port), 10) for _ in range(20)]
    try:
        for one in begun:
            one.sendall(PREFACE + frame(SETTINGS, 0, 0))
        assert sum(answers(one) for one in begun) <= 12
        for one in silent:
            one.settimeout(10)
            while one.recv(1000):
                pass
    except ConnectionResetError:
        pass
    finally:
        for one in (*silent, *begun):
            one.close()
    assert becomes(lambda: is_right(small))


def answers(connection: socket.socket) -> bool:
    connection.settimeout(0.5)
    try:
        return bool(connection.recv(1000))
    except OSError:
        return False


def test_calls_that_end_at_once_and_names_that_are_no_text_fill_no_log(small: GrpcServer) -> None:
    before = len(small.http.log_text())
    for wrong in (
        header(INFER).replace(b"ModelInfer", b"ModelInfe\xf2"),
        header(INFER, ("x-a", "b")),
        b"\0\x01\xff\x01b",
    ):
        with Http2(small.port) as connection:
            for number in range(300):
                stream = 1 + 2 * number
                try:
                    connection.send(frame(HEADERS, 4, stream, wrong) + frame(RESET, 0, stream, b"\0\0\0\x08"))
                except OSError:
                    break
    assert becomes(lambda: is_right(small))
    text = small.http.log_text()[before:]
    assert "Traceback" not in text
    assert "E0000" not in text
    assert len(text) < 60_000


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("ipv6:[::1]:5000", ("::1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("unix:/run/gathernd.sock", None),
        ("unix:", None),
    ],
)
def test_the_address_in_a_peer(peer: str, address: tuple[str, int] | None) -> None:
    assert address_of_peer(peer) == address

"""Bodies that are read past the parser, straight into their place: what stands before and behind them is untouched."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from app.server.http_exchange import MIN_DIRECT_BYTES
from tests.http.held import metric
from tests.http.raw import Answer, Wire
from tests.http.server import Server

ROWS = 4000
HEAD = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\n"


def request(seed: int, head: bytes = HEAD) -> tuple[bytes, bytes, NDArray[Any]]:
    """Header and body of a request with 4 MB of data, and what it must be answered."""
    rng = np.random.default_rng(seed)
    data = rng.random((ROWS, 128))
    indices = rng.integers(0, ROWS, (5, 1))
    body = save({"data": data, "indices": indices})
    assert len(body) > 4 * MIN_DIRECT_BYTES
    return head + b"Content-Length: %d\r\n\r\n" % len(body), body, data[indices[:, 0]]


def check(answer: Answer, expected: NDArray[Any]) -> None:
    assert answer.status == 200, answer
    assert np.array_equal(load(answer.body)["output"], expected)


def test_requests_sent_in_one_go_are_told_apart(server: Server) -> None:
    many = [request(seed) for seed in range(4)]
    small = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Wire(server) as at:
        sent = small.join(head + body for head, body, _ in many)
        sender = threading.Thread(target=at.send, args=(sent,))
        sender.start()
        for number, (_, _, expected) in enumerate(many):
            check(at.read(), expected)
            if number < len(many) - 1:
                assert at.read().status == 200
        sender.join()


@pytest.mark.parametrize(
    "cut", [1, 100, MIN_DIRECT_BYTES - 1, MIN_DIRECT_BYTES, MIN_DIRECT_BYTES + 1, 1 << 20, -MIN_DIRECT_BYTES, -1]
)
def test_a_body_in_two_parts_is_whole(server: Server, cut: int) -> None:
    head, body, expected = request(abs(cut))
    with Wire(server) as at:
        at.send(head, body[:cut])
        time.sleep(0.05)
        at.send(body[cut:])
        check(at.read(), expected)
        at.send(head, body)
        check(at.read(), expected)


def test_a_chunked_body_is_read(server: Server) -> None:
    _, body, expected = request(2)
    with Wire(server) as at:
        at.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for place in range(0, len(body), 300_000):
            piece = body[place : place + 300_000]
            at.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        at.send(b"0\r\n\r\n")
        check(at.read(), expected)


def test_a_client_that_leaves_in_the_middle_costs_nothing(server: Server) -> None:
    head, body, expected = request(4)
    for part in (MIN_DIRECT_BYTES // 2, 3 * MIN_DIRECT_BYTES):
        with Wire(server) as at:
            at.send(head, body[:part])
            time.sleep(0.05)
    with Wire(server) as at:
        at.send(head, body[: 3 * MIN_DIRECT_BYTES])
        at.socket.shutdown(socket.SHUT_WR)
        assert at.socket.recv(1000) == b""
    with Wire(server) as at:
        at.send(head, body)
        check(at.read(), expected)


def test_what_no_longer_fits_is_refused_and_the_connection_lives(start: Callable[..., Any]) -> None:
    head, body, expected = request(6)
    with start("--memory-budget", "6MiB") as server, Wire(server) as first, Wire(server) as second:
        first.send(head, body[:-100])
        end = time.monotonic() + 60
        while metric(server, "gathernd_memory_used_bytes") < len(body) - 100:
            assert time.monotonic() < end
            time.sleep(0.01)
        sender = threading.Thread(target=second.send, args=(head, body))
        sender.start()
        answer = second.read()
        assert (answer.status, answer.json()["code"]) == (503, "overloaded")
        sender.join()
        first.send(body[-100:])
        check(first.read(), expected)
        second.send(head, body)
        check(second.read(), expected)

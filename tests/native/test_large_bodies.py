"""Bodies that are read past the parser, straight into their place: what stands before and behind them is untouched."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from app.server.body_reader import MIN_DIRECT_BYTES
from tests.http.held import metric
from tests.http.server import Server

ROWS = 4000
HEAD = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\n"


class Wire:
    """A connection on which requests are written and answers read byte by byte as they come."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.sendall(piece)

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        while b"\r\n\r\n" not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next(int(line[16:]) for line in lines if line.startswith(b"content-length: "))
        while len(self.rest) < size:
            self._more()
        body, self.rest = self.rest[:size], self.rest[size:]
        return int(lines[0].split()[1]), body

    def _more(self) -> None:
        piece = self.connection.recv(1 << 20)
        assert piece, f"the connection ended after {self.rest[:500]!r}"
        self.rest += piece


@contextmanager
def wire(server: Server) -> Iterator[Wire]:
    with server.connect() as connection:
        yield Wire(connection)


def request(seed: int, head: bytes = HEAD) -> tuple[bytes, bytes, NDArray[Any]]:
    """Header and body of a request with 4 MB of data, and what it must be answered."""
    rng = np.random.default_rng(seed)
    data = rng.random((ROWS, 128))
    indices = rng.integers(0, ROWS, (5, 1))
    body = save({"data": data, "indices": indices})
    assert len(body) > 4 * MIN_DIRECT_BYTES
    return head + b"Content-Length: %d\r\n\r\n" % len(body), body, data[indices[:, 0]]


def check(answer: tuple[int, bytes], expected: NDArray[Any]) -> None:
    assert answer[0] == 200, answer
    assert np.array_equal(load(answer[1])["output"], expected)


def test_one_after_another_on_one_connection(server: Server) -> None:
    with wire(server) as at:
        for seed in range(3):
            head, body, expected = request(seed)
            at.send(head, body)
            check(at.answer(), expected)


def test_requests_sent_in_one_go_are_told_apart(server: Server) -> None:
    many = [request(seed) for seed in range(4)]
    small = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with wire(server) as at:
        sent = small.join(head + body for head, body, _ in many)
        sender = threading.Thread(target=at.send, args=(sent,))
        sender.start()
        for number, (_, _, expected) in enumerate(many):
            check(at.answer(), expected)
            if number < len(many) - 1:
                assert at.answer()[0] == 200
        sender.join()


@pytest.mark.parametrize(
    "cut", [1, 100, MIN_DIRECT_BYTES - 1, MIN_DIRECT_BYTES, MIN_DIRECT_BYTES + 1, 1 << 20, -MIN_DIRECT_BYTES, -1]
)
def test_a_body_in_two_parts_is_whole(server: Server, cut: int) -> None:
    head, body, expected = request(abs(cut))
    with wire(server) as at:
        at.send(head, body[:cut])
        time.sleep(0.05)
        at.send(body[cut:])
        check(at.answer(), expected)
        at.send(head, body)
        check(at.answer(), expected)


def test_a_client_that_waits_to_be_told_to_continue_is_told(server: Server) -> None:
    head, body, expected = request(1, HEAD + b"Expect: 100-continue\r\n")
    with wire(server) as at:
        at.send(head)
        assert at.connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        at.send(body)
        check(at.answer(), expected)


def test_a_chunked_body_is_read(server: Server) -> None:
    _, body, expected = request(2)
    with wire(server) as at:
        at.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for place in range(0, len(body), 300_000):
            piece = body[place : place + 300_000]
            at.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        at.send(b"0\r\n\r\n")
        check(at.answer(), expected)


def test_a_compressed_body_is_read(server: Server) -> None:
    _, body, expected = request(3)
    packed = gzip.compress(body, 1)
    assert len(packed) > 4 * MIN_DIRECT_BYTES
    with wire(server) as at:
        for _ in range(2):
            at.send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed), packed)
            check(at.answer(), expected)


def test_json_comes_the_same_way(server: Server) -> None:
    values = np.random.default_rng(5).random(40_000)
    asked = {
        "data": {"dtype": "float64", "shape": [40_000], "values": values.tolist()},
        "indices": {"dtype": "int64", "shape": [1, 1], "values": [-1]},
    }
    body = json.dumps(asked).encode()
    with wire(server) as at:
        for _ in range(2):
            at.send(b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body), body)
            status, answer = at.answer()
            assert (status, json.loads(answer)["output"]["values"]) == (200, [values[-1]])


def test_a_client_that_leaves_in_the_middle_costs_nothing(server: Server) -> None:
    head, body, expected = request(4)
    for part in (MIN_DIRECT_BYTES // 2, 3 * MIN_DIRECT_BYTES):
        with wire(server) as at:
            at.send(head, body[:part])
            time.sleep(0.05)
    with wire(server) as at:
        at.send(head, body[: 3 * MIN_DIRECT_BYTES])
        at.connection.shutdown(socket.SHUT_WR)
        assert at.connection.recv(1000) == b""
    with wire(server) as at:
        at.send(head, body)
        check(at.answer(), expected)


def test_what_no_longer_fits_is_refused_and_the_connection_lives(start: Callable[..., Any]) -> None:
    head, body, expected = request(6)
    with start("--memory-budget", "6MiB") as server, wire(server) as first, wire(server) as second:
        first.send(head, body[:-100])
        end = time.monotonic() + 60
        while metric(server, "gathernd_memory_used_bytes") < len(body) - 100:
            assert time.monotonic() < end
            time.sleep(0.01)
        sender = threading.Thread(target=second.send, args=(head, body))
        sender.start()
        status, answer = second.answer()
        assert (status, json.loads(answer)["code"]) == (503, "overloaded")
        sender.join()
        first.send(body[-100:])
        check(first.answer(), expected)
        second.send(head, body)
        check(second.answer(), expected)


def test_a_sender_that_stops_in_the_middle_is_told(start: Callable[..., Any]) -> None:
    head, body, expected = request(7)
    with start("--body-timeout", "1") as server:
        with wire(server) as at:
            at.send(head, body[: 5 * MIN_DIRECT_BYTES])
            status, answer = at.answer()
            assert (status, json.loads(answer)["code"]) == (408, "request_timeout")
            assert at.connection.recv(1) == b""
        with wire(server) as at:
            at.send(head, body)
            check(at.answer(), expected)

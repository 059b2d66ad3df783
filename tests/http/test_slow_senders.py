"""Senders that are too slow, on purpose or not: refused with 408, while patient and idle ones are left in peace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from select import select
from time import monotonic, sleep

import pytest

from tests.http.conftest import Start
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server

pytestmark = pytest.mark.long
LATE = 30
"""Seconds within which the server of these tests ends what takes a second too long, whatever else the machine does. Its
clients wait no longer."""


@pytest.fixture(scope="module")
def strict(start: Start) -> Iterator[Server]:
    with start(
        "--header-timeout", "1", "--body-timeout", "1", "--min-body-rate", "1000", "--keep-alive", "100"
    ) as server:
        yield server


@contextmanager
def wires(server: Server, count: int) -> Iterator[list[Wire]]:
    """Connections of which each waits for the same time as the others."""
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(server)) for _ in range(count)]


def check_refused_in_time(wire: Wire, begun: float) -> None:
    """The connection gets request_timeout in time, and closed."""
    answer = wire.read()
    assert (answer.status, answer.json()["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    assert 0.9 < monotonic() - begun < LATE
    assert wire.closed()


def send_until_answered(wire: Wire, piece: bytes, begun: float) -> None:
    """Send a piece five times a second until an answer comes."""
    while not select([wire.socket], [], [], 0.2)[0]:
        assert monotonic() - begun < LATE
        wire.send(piece)


def test_a_slow_loris_header_is_refused_though_bytes_keep_coming(strict: Server) -> None:
    with Wire(strict) as wire:
        begun = monotonic()
        wire.send(b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\n")
        send_until_answered(wire, b"X-A: b\r\n", begun)
        check_refused_in_time(wire, begun)


def test_a_body_that_stops_is_refused(strict: Server) -> None:
    with wires(strict, 2) as stopped:
        begun = monotonic()
        stopped[0].send(request(TINY)[: 5 - len(TINY)])
        stopped[1].send(request(b"", "Transfer-Encoding: chunked", length=False) + b"5\r\n{")
        for wire in stopped:
            check_refused_in_time(wire, begun)


def test_a_slow_loris_body_is_refused_though_bytes_keep_coming(strict: Server) -> None:
    with Wire(strict) as wire:
        begun = monotonic()
        wire.send(request(b"", "Content-Length: 100000", length=False))
        send_until_answered(wire, b" ", begun)
        check_refused_in_time(wire, begun)


def test_a_steady_body_may_take_longer_than_a_pause(strict: Server) -> None:
    body = TINY + b" " * 40_000
    with Wire(strict) as wire:
        wire.send(request(body)[: -len(body)])
        for place in range(0, len(body), 2_000):
            wire.send(body[place : place + 2_000])
            sleep(0.12)
        assert wire.read().status == 200


def test_a_connection_may_idle_between_requests(strict: Server) -> None:
    with Wire(strict) as wire:
        for _ in range(2):
            wire.send(request(TINY))
            assert wire.read().status == 200
            sleep(1.5)
        wire.send(request(TINY))
        assert wire.read().status == 200


@pytest.fixture(scope="module")
def short_timeouts(start: Start) -> Iterator[Server]:
    with start("--keep-alive", "1", "--header-timeout", "100", "--body-timeout", "100") as server:
        yield server


def test_an_idle_connection_is_closed_after_keep_alive(short_timeouts: Server) -> None:
    with Wire(short_timeouts) as wire:
        begun = monotonic()
        wire.send(request(TINY))
        assert wire.read().status == 200
        assert wire.closed()
        assert 0.9 < monotonic() - begun < LATE


def test_a_connection_on_which_no_request_starts_is_closed(short_timeouts: Server) -> None:
    with wires(short_timeouts, 2) as unused:
        begun = monotonic()
        unused[1].send(b"\r\n")
        for wire in unused:
            assert wire.closed()
        assert monotonic() - begun < LATE

"""Clients that are too slow: senders get a 408, readers are cut off, while patient and idle ones are left in peace."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from select import select
from time import monotonic, sleep

import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.held import metric, until
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server
from tests.http.tensors import put_raw

pytestmark = pytest.mark.long
LATE = 30
"""Seconds within which the servers of these tests end what takes a second too long."""
ROW = 1 << 20


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


@pytest.fixture(scope="module")
def rows(start: Start) -> Iterator[Server]:
    """A server with the resident tensor `rows` of 16 MiB, and with short timeouts of answers."""
    with start("--answer-timeout", "1", "--min-answer-rate", "400000", "--memory-budget", "64MiB") as server:
        table = np.arange(16 * ROW, dtype=np.uint32).astype(np.uint8).reshape(16, ROW)
        assert put_raw(server.shared_client(), "rows", table).status_code == 201
        yield server


GATHER = request(
    b'{"data":{"tensor":"rows"},"indices":{"dtype":"int64","shape":[16,1],"values":[%b]},"output_encoding":"base64"}'
    % b",".join(b"%d" % row for row in range(16))
)
DOWNLOAD = request(b"", line="GET /tensors/rows/content HTTP/1.1", length=False)


@contextmanager
def asking(server: Server, data: bytes) -> Iterator[socket.socket]:
    """A connection whose client takes few bytes before it reads them, and has read the first of an answer."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(data)
        assert connection.recv(12) == b"HTTP/1.1 200"
        yield connection


def wait_until_freed(server: Server) -> None:
    until(lambda: metric(server, "gathernd_memory_used_bytes") <= ROW, LATE)


@pytest.mark.parametrize("data", [GATHER, DOWNLOAD], ids=["an answer", "a download"])
def test_a_client_that_reads_nothing_is_cut_off_and_its_memory_freed(rows: Server, data: bytes) -> None:
    refusals = metric(rows, 'gathernd_errors_total{code="request_timeout"}')
    begun = monotonic()
    with asking(rows, data) as connection:
        wait_until_freed(rows)
        read = 0
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                read += len(piece)
        assert read < ROW * 16
        assert monotonic() - begun > 0.9
    assert metric(rows, 'gathernd_errors_total{code="request_timeout"}') == refusals + 1


def test_a_client_that_reads_a_little_now_and_then_is_cut_off(rows: Server) -> None:
    with asking(rows, GATHER) as connection:
        begun = monotonic()
        with suppress(ConnectionResetError):
            while monotonic() - begun < LATE and connection.recv(10_000):
                sleep(0.2)
        assert monotonic() - begun < LATE
    wait_until_freed(rows)


def test_a_steady_reader_may_take_longer_than_a_pause(rows: Server) -> None:
    with asking(rows, GATHER) as connection:
        end, read = monotonic() + 2.5, 0
        while read < 16 * (4 * ROW // 3):
            read += len(connection.recv(100_000))
            if monotonic() < end:  # several hundred kilobytes a second
                sleep(0.03)
        connection.sendall(request(TINY))
        while b"HTTP/1.1 200" not in (piece := connection.recv(1 << 16)):
            assert piece

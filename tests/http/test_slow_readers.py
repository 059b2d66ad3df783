"""Clients that do not read what they asked for: cut off, and what their answers took of the memory is given back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import monotonic, sleep

import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.held import metric
from tests.http.raw import TINY, request
from tests.http.server import Server
from tests.http.tensors import put_raw

pytestmark = pytest.mark.long
MIB = 1 << 20
ROW = 1 << 20
ASKED = (
    b'{"data":{"tensor":"rows"},"indices":{"dtype":"int64","shape":[%d,1],"values":[%s]},"output_encoding":"base64"}'
)
LATE = 30
"""Seconds within which the server of these tests ends what takes a second too long, whatever else the machine does."""


@pytest.fixture(scope="module")
def strict(start: Start) -> Iterator[Server]:
    """A server with the resident tensor `rows` of 16 MiB, and with short timeouts."""
    with start("--answer-timeout", "1", "--min-answer-rate", "400000", "--memory-budget", "64MiB") as server:
        rows = np.arange(16 * ROW, dtype=np.uint32).astype(np.uint8).reshape(16, ROW)
        assert put_raw(server.shared_client(), "rows", rows).status_code == 201
        yield server


def connect(server: Server) -> socket.socket:
    """A connection whose client takes few bytes before it reads them."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    return connection


def ask(connection: socket.socket, rows: int = 16) -> None:
    """Ask for `rows` rows, and take in the first bytes of the answer."""
    connection.sendall(request(ASKED % (rows, b",".join(b"%d" % row for row in range(rows)))))
    assert connection.recv(12) == b"HTTP/1.1 200"


def is_cut_off(connection: socket.socket) -> bool:
    """Whether the server ends the connection before it has sent the answer."""
    read = 0
    try:
        while piece := connection.recv(1 << 20):
            read += len(piece)
    except ConnectionResetError:
        pass
    return read < ROW * 16


def held(server: Server) -> float:
    return metric(server, "gathernd_memory_used_bytes")


def wait_until_freed(server: Server, begun: float) -> None:
    while held(server) > MIB:
        assert monotonic() - begun < LATE
        sleep(0.1)


def test_a_client_that_reads_nothing_is_cut_off_and_its_memory_freed(strict: Server) -> None:
    refusals = metric(strict, 'gathernd_errors_total{code="request_timeout"}')
    with connect(strict) as connection:
        begun = monotonic()
        ask(connection)
        wait_until_freed(strict, begun)
        assert monotonic() - begun > 0.9
        assert is_cut_off(connection)
    assert metric(strict, 'gathernd_errors_total{code="request_timeout"}') == refusals + 1


def test_a_client_that_reads_a_little_now_and_then_is_cut_off(strict: Server) -> None:
    with connect(strict) as connection:
        begun = monotonic()
        ask(connection)
        try:
            while monotonic() - begun < LATE and connection.recv(10_000):
                sleep(0.2)
        except ConnectionResetError:
            pass
        assert monotonic() - begun < LATE
    wait_until_freed(strict, begun)


def test_a_download_that_nobody_reads_is_cut_off(strict: Server) -> None:
    with connect(strict) as connection:
        begun = monotonic()
        connection.sendall(request(b"", line="GET /tensors/rows/content HTTP/1.1", length=False))
        assert connection.recv(12) == b"HTTP/1.1 200"
        wait_until_freed(strict, begun)
        assert is_cut_off(connection)


def test_a_steady_reader_may_take_longer_than_a_pause(strict: Server) -> None:
    with connect(strict) as connection:
        end = monotonic() + 2.5
        ask(connection)
        wanted = 16 * (4 * ROW // 3)
        read = 0
        while read < wanted:
            read += len(connection.recv(100_000))
            if monotonic() < end:  # several hundred kilobytes a second
                sleep(0.03)
        connection.sendall(request(TINY))
        while b"HTTP/1.1 200" not in (piece := connection.recv(1 << 16)):
            assert piece

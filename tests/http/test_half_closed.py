"""Clients that say they send no more (shutdown of one direction) and read on: what arrived whole is answered."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tests.http.conftest import Start
from tests.http.held import faulty, held, metric, until, wait_for_queue
from tests.http.raw import TINY, Answer, Wire, request
from tests.http.server import Server

OTHER = TINY.replace(b"[7,8]", b"[5,6]")
GONE = 'gathernd_errors_total{code="client_gone"}'


def end(wire: Wire) -> None:
    """Send no more."""
    wire.socket.shutdown(socket.SHUT_WR)


def last(wire: Wire) -> Answer:
    """The answer after those that only say that there will be one; nothing follows it."""
    answer = wire.read()
    while answer.status == 100:
        answer = wire.read()
    assert wire.closed()
    return answer


@pytest.fixture(scope="module")
def slow(start: Start) -> Iterator[Server]:
    """One thread on which gathers can be held, and room for more to wait."""
    flags = ("--threads", "1", "--max-queue", "4", "--loop-max-us", "0", "--queue-timeout", "100")
    with start(*flags, command=faulty("held")) as server:
        yield server


@pytest.mark.parametrize("body", [TINY, TINY[:-1] + b" " * (1 << 19) + TINY[-1:]], ids=["small", "large"])
def test_a_request_is_answered_however_long_it_takes(slow: Server, body: bytes) -> None:
    gone = metric(slow, GONE)
    with Wire(slow) as wire:
        with held(slow):
            wire.send(request(body))
            end(wire)
            wait_for_queue(slow, 1)
        assert last(wire).status == 200
    assert metric(slow, GONE) == gone


@pytest.mark.parametrize("size", [8, 1 << 17, 5 << 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_whole_upload_is_stored(server: Server, size: int, chunked: bool) -> None:
    items = np.arange(size // 8, dtype=np.int64).tobytes()
    line = f"PUT /tensors/half?dtype=int64&shape={size // 8} HTTP/1.1"
    kind = "Content-Type: application/octet-stream"
    head = request(b"", kind, *(["Transfer-Encoding: chunked"] if chunked else [f"Content-Length: {size}"]), line=line,
                   length=False)  # fmt: skip
    with Wire(server) as wire:
        wire.send(head + (b"%x\r\n%b\r\n0\r\n\r\n" % (size, items) if chunked else items))
        end(wire)
        assert last(wire).status in (200, 201)
    assert server.shared_client().get("/tensors/half/content").content == items
    server.shared_client().delete("/tensors/half")


@pytest.mark.parametrize(
    "rest", [request(TINY)[:20], request(TINY)[:-1], request(b"", "Content-Length: 9999999", length=False) + b"{"]
)
def test_what_is_not_whole_does_not_keep_what_is_from_being_answered(slow: Server, rest: bytes) -> None:
    with Wire(slow) as wire:
        with held(slow):
            wire.send(request(TINY) + request(OTHER) + rest)
            end(wire)
            wait_for_queue(slow, 1)
        assert wire.read().json()["output"]["values"] == [8]
        assert last(wire).json()["output"]["values"] == [6]


@pytest.mark.parametrize("part", [b"", request(TINY)[:20], request(TINY)[:-1]])
def test_without_a_whole_request_the_connection_closes(server: Server, part: bytes) -> None:
    with Wire(server) as wire:
        wire.send(request(TINY))
        assert wire.read().status == 200
        wire.send(part)
        end(wire)
        assert wire.closed()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_has_gone_altogether_is_noticed_while_its_request_waits(slow: Server, reset: bool) -> None:
    gone = metric(slow, GONE)
    with Wire(slow) as first:
        with held(slow):
            first.send(request(TINY))
            wait_for_queue(slow, 1)
            with Wire(slow) as second:
                second.send(request(OTHER))
                wait_for_queue(slow, 2)
                end(second)
                if reset:
                    second.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wait_for_queue(slow, 1)
            until(lambda: metric(slow, GONE) == gone + 1)
        assert first.read().status == 200


def test_a_client_that_has_gone_is_noticed_while_its_body_waits_for_room(start: Start, tmp_path: Path) -> None:
    """Over TCP and on a Unix socket, which tell of it in different ways."""
    mib, kind = 1 << 20, "Content-Type: application/x-safetensors"
    large = save({"data": np.zeros((20, mib), np.uint8), "indices": np.arange(20)[:, None]})
    flags = ("--uds", str(tmp_path / "a.sock"), "--memory-budget", "64MiB", "--threads", "1", "--queue-timeout", "100")

    def on_unix_socket() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(tmp_path / "a.sock"))
        return made

    with start(*flags, command=faulty("held")) as server, Wire(server) as first:
        with held(server):
            first.send(request(large, kind))
            wait_for_queue(server, 1)
            for number, connect in enumerate((server.connect, on_unix_socket), 1):
                with Wire(connect()) as second:
                    second.send(request(bytes(80_000), f"Content-Length: {16 * mib}", kind, length=False))
                    until(lambda: metric(server, "gathernd_requests_in_flight") == 3)
                until(lambda number=number: metric(server, GONE) == number)  # type: ignore[misc]
        assert first.read().status == 200

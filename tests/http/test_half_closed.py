"""Clients that say they send no more (shutdown of one direction) and read on: what arrived whole is answered."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest

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

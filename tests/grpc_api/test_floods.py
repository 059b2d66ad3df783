"""Floods of frames on the port of gRPC: the server's memory stays, its log stays short, and others are answered.

The caller that floods reads nothing, so that what the server owes it stays in the server.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from struct import pack
from threading import Thread
from time import monotonic, sleep

import numpy as np
import pytest

from tests.conftest import samples
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer, StartGrpc, becomes
from tests.grpc_api.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INFER,
    LARGEST_WINDOW,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW,
    frame,
    framed,
    header,
    literal,
)
from tests.grpc_api.messages import Channel, example, output

ROOM = 48 << 20
"""More memory than this no flood may make the server keep."""
MOST_WAIT_S = 5.0
"""No call of a neighbour may take longer meanwhile; this machine does the work of others too."""
PORTION = 1 << 16
PLACES = 14
"""So many calls may be under way at once: the memory budget holds 16 messages of the largest size, of which two may be
of calls that need no key."""
CANCEL = pack(">I", 8)


def frames(make: Callable[[int], bytes]) -> Iterator[bytes]:
    """Frames without an end, in portions."""
    number = 0
    while True:
        portion = bytearray()
        while len(portion) < PORTION:
            portion += make(number)
            number += 1
        yield bytes(portion)


def opened(number: int, path: str = INFER, *more: tuple[str, str]) -> bytes:
    """The header of call `number`."""
    return frame(HEADERS, END_HEADERS, 1 + 2 * number, header(path, *more))


def reset(number: int) -> bytes:
    return frame(RESET, 0, 1 + 2 * number, CANCEL)


CALLS = "calls"
"""They take all places for calls, so that the neighbour is refused and tries again."""
WHOLE = framed(example().SerializeToString())
FLOODS: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "settings": (b"", lambda n: frame(SETTINGS, 0, 0, pack(">HI", 4, 65_535 - n % 2) * 500)),
    "pings": (b"", lambda n: frame(PING, 0, 0, pack(">Q", n))),
    "continuation": (
        frame(HEADERS, 0, 1, header()),
        lambda n: frame(CONTINUATION, 0, 1, literal(f"x-{n % 10_000:05}", "v" * 100)),
    ),
    "rapid-reset": (b"", lambda n: opened(n) + frame(DATA, END_STREAM, 1 + 2 * n, WHOLE) + reset(n)),
    "rapid-reset-by-the-server": (b"", lambda n: opened(n) + frame(WINDOW, 0, 1 + 2 * n, pack(">I", 0))),
    CALLS: (b"", opened),
    "empty-data": (opened(0), lambda _: frame(DATA, 0, 1)),
    "unknown-frames": (b"", lambda n: frame(0x20 + n % 100, 0, 0, bytes(100))),
    "window-overflow": (opened(0), lambda _: frame(WINDOW, 0, 1, pack(">I", LARGEST_WINDOW))),
    "indexed-fields": (b"", lambda n: frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * n, b"\x82" * 10_000)),
}


@pytest.fixture(scope="module")
def server(start_grpc: StartGrpc) -> Iterator[GrpcServer]:
    with start_grpc("--memory-budget", "256MiB", "--answer-timeout", "2") as started:
        yield started
        assert "Traceback" not in started.http.log_text()


def flood(server: GrpcServer, first: bytes, make: Callable[[int], bytes], most_bytes: int, seconds: float) -> int:
    """Send frames until so many bytes have gone, the server ends the connection or takes no more; how many went."""
    sent, end = 0, monotonic() + seconds
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.5)
        connection.connect(("127.0.0.1", server.port))
        with suppress(OSError):
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + first)
            for portion in frames(make):
                connection.sendall(portion)
                sent += len(portion)
                if sent >= most_bytes or monotonic() > end:
                    sleep(0.2)
                    break
    return sent


def until_full(channel: Channel) -> None:
    """Wait until so many calls are under way that one more is refused."""
    end = monotonic() + 20
    while channel.attempt("ModelInfer", example())[0] == "OK":
        assert monotonic() < end


def test_a_call_for_which_there_is_no_place_waits_a_moment_for_one(server: GrpcServer) -> None:
    answers = []
    with socket.socket() as connection, Channel(server.address) as channel:
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + b"".join(map(opened, range(PLACES))))
        until_full(channel)
        status, problem = channel.refused("ModelInfer", example())
        assert (status, problem["code"], problem["limit"]) == ("UNAVAILABLE", "overloaded", "grpc_calls")
        waiting = Thread(target=lambda: answers.append(channel.attempt("ModelInfer", example())))
        waiting.start()
        sleep(0.05)
        connection.sendall(b"".join(map(reset, range(PLACES))))
        waiting.join(60)
        for _ in range(2 * PLACES):  # each place is free again
            channel.call("ModelInfer", example())
    assert [status for status, _ in answers] == ["OK"], answers


def is_answered(channel: Channel, *, may_be_refused: bool) -> bool:
    """Ask for a small gather, which is answered rightly and soon, or refused since all places are taken."""
    begun = monotonic()
    status, answer = channel.attempt("ModelInfer", example(), 30)
    assert monotonic() - begun < MOST_WAIT_S
    if may_be_refused and status == "UNAVAILABLE" and answer["code"] == "overloaded":
        sleep(0.05)
        return False
    assert status == "OK", answer
    assert output(answer, np.float32).tolist() == [[2, 3], [0, 1]]
    return True


@for_each("kind", FLOODS)
def test_a_flood_of_frames(server: GrpcServer, kind: str) -> None:
    first, make = FLOODS[kind]
    flood(server, first, make, PORTION, 5)  # what the first of a kind makes the server load stays
    before, peak_before, logged = server.http.memory(), server.http.peak(), len(server.http.log_text())
    with ThreadPoolExecutor(1) as flooding, Channel(server.address) as channel:
        for _ in range(samples(4)):
            flooded = flooding.submit(flood, server, first, make, samples(3000) << 10, 10)
            while not flooded.done():
                is_answered(channel, may_be_refused=kind == CALLS)
        assert becomes(lambda: is_answered(channel, may_be_refused=kind == CALLS), MOST_WAIT_S)
    assert server.http.process.poll() is None, server.http.log_text()
    assert server.http.memory() - before < ROOM
    assert server.http.peak() - peak_before < ROOM
    assert len(server.http.log_text()) - logged < 100_000

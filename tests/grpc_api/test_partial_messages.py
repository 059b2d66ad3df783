"""Messages of which only a part comes: what gRPC holds of them fits the memory budget, and others are answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack
from time import monotonic, sleep
from typing import Any

import pytest

from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer, StartGrpc
from tests.grpc_api.http2 import CHECK, CHUNK, INFER, RESET, STREAM, Http2, frame, framed
from tests.grpc_api.messages import Channel, example, pb
from tests.grpc_api.test_hostile_connections import becomes, is_right, used

READY = "/inference.GRPCInferenceService/ServerReady"
WATCH = "/grpc.health.v1.Health/Watch"
BUDGET = 64 << 20
MESSAGE = 4 << 20
"""The longest message."""
SENT = 3 << 20
"""Bytes that come of each."""
CALLERS = 60
"""Together they would send nearly three times the budget."""
ROOM = BUDGET * 13 // 10
CANCEL = pack(">I", 8)


@pytest.fixture(scope="module")
def server(start_grpc: StartGrpc) -> Iterator[GrpcServer]:
    with start_grpc("--memory-budget", "64MiB", "--grpc-max-message-bytes", "4MiB", "--deadline", "60") as started:
        assert is_right(started)
        yield started
        assert "Traceback" not in started.http.log_text()


@pytest.fixture(scope="module")
def most(server: GrpcServer) -> int:
    """The most memory that the server may hold, from what it holds before the first attack."""
    return server.http.memory() + ROOM


class Caller:
    """Begins a call, or several, and sends the beginning of a message, as far as the server's windows let it."""

    def __init__(self, connection: Http2, path: str, first: bytes, flag: int, calls: int) -> None:
        self.connection = connection
        self._left = {1 + 2 * number: SENT // calls for number in range(calls)}
        for stream in self._left:
            connection.open(stream, path)
            connection.push(stream, first + bytes([flag]) + pack(">I", MESSAGE))

    def send(self) -> bool:
        """Send what may be sent now; False if that is nothing."""
        sent = False
        for stream, left in self._left.items():
            if left > 0 and self.connection.push(stream, bytes(CHUNK)):
                self._left[stream] -= CHUNK
                sent = True
        return sent


ATTACKS: dict[str, tuple[str, bytes, int, int]] = {
    "check": (CHECK, b"", 0, 1),
    "check-many-calls": (CHECK, b"", 0, 8),
    "check-compressed": (CHECK, b"", 1, 1),
    "ready": (READY, b"", 0, 1),
    "watch": (WATCH, b"", 0, 1),
    "watch-after-its-message": (WATCH, framed(b""), 0, 8),
    "infer": (INFER, b"", 0, 1),
    "infer-many-calls": (INFER, b"", 0, 8),
    "stream": (STREAM, b"", 0, 1),
    "stream-after-a-request": (STREAM, framed(example().SerializeToString()), 0, 1),
}
"""By a name: the call, what comes before the part of a message, its flag of compression, and calls a connection."""


@for_each("kind", slow_but_for(("check", "watch-after-its-message", "infer-many-calls", "stream"), ATTACKS))
@pytest.mark.slow
def test_parts_of_messages_fit_the_budget(server: GrpcServer, most: int, kind: str) -> None:
    path, first, flag, calls = ATTACKS[kind]
    held = 0
    with ExitStack() as stack:
        connections = [stack.enter_context(Http2(server.port)) for _ in range(CALLERS)]
        callers = [Caller(connection, path, first, flag, calls) for connection in connections]
        until = monotonic() + 0.5
        while monotonic() < until:
            if sum(caller.send() for caller in callers):
                until = monotonic() + 0.5
            else:
                sleep(0.01)
            held = max(held, server.http.memory())
        with Channel(server.address) as channel:
            assert channel.call("ServerReady", pb.ServerReadyRequest()).ready
    assert held < most
    assert becomes(lambda: used(server) == 0)
    assert becomes(lambda: is_right(server))


def test_a_flood_of_calls_that_are_reset_before_their_message_has_come(server: GrpcServer, most: int) -> None:
    held = 0
    for path in (CHECK, INFER):
        with Http2(server.port) as connection:
            for number in range(2000):
                stream = 1 + 2 * number
                connection.open(stream, path)
                connection.push(stream, pack(">BI", 0, MESSAGE) + bytes(CHUNK))
                connection.send(frame(RESET, 0, stream, CANCEL))
        held = max(held, server.http.memory())
    assert held < most
    assert becomes(lambda: is_right(server))


def test_a_message_of_a_call_without_a_key_is_short(server: GrpcServer) -> None:
    with Channel(server.address) as channel:
        call: Any = channel.channel.unary_unary(CHECK)
        name = b"\x0a\x80\x80\x04" + b"a" * (1 << 16)
        with pytest.raises(Exception, match="message is larger than the limit of 16384 bytes"):
            call(name, timeout=20)

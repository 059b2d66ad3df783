"""Compressed messages that inflate to far more: the server lives, its memory stays, and the next request is right."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import grpc
import numpy as np
import pytest

from tests.grpc_api.conftest import GrpcServer, StartGrpc
from tests.grpc_api.http2 import INFER, conversation
from tests.grpc_api.messages import Channel, example, output

ROOM = 200 << 20
"""More memory than this no test here may make the server keep."""


@pytest.fixture(autouse=True)
def bounded(grpc_server: GrpcServer) -> Iterator[None]:
    """The server outlives each test, answers rightly after it, and its memory stays bounded."""
    before, peak_before = grpc_server.http.memory(), grpc_server.http.peak()
    yield
    assert grpc_server.http.process.poll() is None, grpc_server.http.log_text()
    with Channel(grpc_server.address) as channel:
        assert output(channel.call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]
    assert grpc_server.http.memory() - before < ROOM
    assert grpc_server.http.peak() - peak_before < ROOM
    assert "Traceback" not in grpc_server.http.log_text()


def send(server: GrpcServer, content: bytes, wait: float = 0.2) -> bytes:
    """What comes back within a short time."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.settimeout(wait)
        with suppress(OSError):
            connection.sendall(content)
            while part := connection.recv(1 << 16):
                found += part
    return found


def bomb_of(times: int) -> bytes:
    """So many times 16 MiB of zeros as gzip. A full flush lets the same compressed bytes stand again and again."""
    made = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    first = made.compress(b"") + made.flush(zlib.Z_FULL_FLUSH)
    more = made.compress(bytes(16 << 20)) + made.flush(zlib.Z_FULL_FLUSH)
    return first + times * more


def test_compressed_bombs(grpc_server: GrpcServer) -> None:
    bomb = bomb_of(64)
    assert len(bomb) < 2 << 20
    assert len(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(bomb, 64 << 20)) == 64 << 20
    answer = send(grpc_server, b"".join(conversation(bomb, ("grpc-encoding", "gzip"), flag=1)), 3)
    assert answer.startswith(b"\0"), answer[:100]


BUDGET = 200 << 20
ALLOWANCE = BUDGET // 2
"""What a server may hold beside its budget: a quarter for freed memory that it keeps for the next request, and as much
again for messages as they came, and for what takes a request too little to be charged."""


@pytest.fixture(scope="module")
def tight(start_grpc: StartGrpc) -> Iterator[GrpcServer]:
    with start_grpc("--memory-budget", str(BUDGET)) as server:
        yield server


def test_what_is_inflated_for_a_caller_who_has_gone_is_given_back(tight: GrpcServer) -> None:
    """Callers go before, while and after their messages are inflated, however long that takes."""
    bomb = bomb_of(1)
    with Channel(tight.address) as channel:
        call: Any = channel.channel.stream_stream(INFER)
        with suppress(grpc.RpcError):
            list(call(iter([bomb]), timeout=60))
        before = held = tight.http.memory()
        for milliseconds in range(1, 81):
            with suppress(grpc.RpcError):
                list(call(iter([bomb]), timeout=milliseconds / 1000))
            held = max(held, tight.http.memory())
    end = monotonic() + 60
    while "gathernd_memory_used_bytes 0.0" not in tight.http.shared_client().get("/metrics").text:
        assert monotonic() < end
        sleep(0.05)
    assert held - before < BUDGET + ALLOWANCE

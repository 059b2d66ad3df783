"""Messages and frames made to do harm: the server lives, its memory stays, and the next request is answered right."""

from __future__ import annotations

import random
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import samples
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer, StartGrpc
from tests.grpc_api.http2 import INFER, conversation
from tests.grpc_api.messages import Channel, example, output, request

EXPECTED = {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}
ROOM = 200 << 20
"""More memory than this no test here may make the server keep."""


@pytest.fixture(scope="module")
def channel(grpc_server: GrpcServer) -> Iterator[Any]:
    with Channel(grpc_server.address) as made:
        yield made.channel


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


def seeds() -> list[bytes]:
    """Messages that are right: raw, in contents, of strings, with parameters and outputs asked for."""
    data = np.arange(24, dtype=np.int16).reshape(6, 4)
    texts = np.array(["a", "é", "", "z" * 20], object)
    indices = np.array([[1], [3]], np.int64)
    found = []
    for typed in (False, True):
        for datatype, array in (("INT16", data), ("FP64", data.astype(np.float64)), ("BYTES", texts)):
            arrays = {"data": (datatype, array), "indices": ("INT64", indices)}
            made = request(arrays, typed=typed, parameters={"batch_dims": 0, "dialect": "onnx-13"}, id="7")
            made.outputs.add(name="output")
            found.append(made.SerializeToString())
    lookup = {"0.indices": ("INT64", np.array([0, 1]))}
    found.append(
        request(lookup, "lookup", parameters={"lookup": '{"features": [{"tensor": "no"}]}'}).SerializeToString()
    )
    return found


def mutated(rng: random.Random, message: bytes) -> bytes:
    made = bytearray(message)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(made):
            made[at] = rng.choice((0, 1, 2, 0x2A, 0x3A, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 1 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del made[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            made[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            made[at:at] = rng.choice(
                (b"\xff" * 9 + b"\x01", b"\x0b\x0c", b"\x2a\x00", b"\x3a\x00", b"\x80" * 12, b"\xd2\x7d\x01a")
            )
        else:
            end = rng.randrange(at, len(made) + 1)
            made[at:at] = made[at:end]
        if not made:
            break
    return bytes(made)


def test_mutated_messages(channel: Any) -> None:
    rng = random.Random(19)
    infer = channel.unary_unary(INFER)
    known = seeds()
    answered = refused = 0
    for number in range(samples(4000) // 50):
        calls = [infer.future(mutated(rng, rng.choice(known)), timeout=60) for _ in range(50)]
        for call in calls:
            status = call.code().name
            assert status in EXPECTED or status == "OK", (number, call)
            answered += status == "OK"
            refused += status != "OK"
    assert answered
    assert refused


MANY: dict[str, bytes] = {
    "parameters": b"\x2a\x06\x22\x04\x0a\x02ab" * 100_000,
    "raws": b"\x3a\x00" * 1_000_000,
    "single-numbers": b"\x2a\x04\x2a\x02\x18\x01" * 200_000,
    "rank": b"\x2a\x85\x80\x40\x1a\x80\x80\x40" + b"\x7f" * (1 << 20) + b"\x08",
}
"""Messages of a few megabytes that would be far more memory as objects."""


@for_each("kind", MANY)
def test_messages_that_would_be_many_objects(channel: Any, grpc_server: GrpcServer, kind: str) -> None:
    before = grpc_server.http.memory()
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(INFER)(b"\x0a\x08gathernd" + MANY[kind], timeout=60)
    assert caught.value.code().name in EXPECTED, caught.value
    assert grpc_server.http.memory() - before < ROOM


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

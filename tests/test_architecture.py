"""`docs/architecture.md` lists the calls from the socket to the kernel as they are, none left out of their order."""

from __future__ import annotations

import ast
import asyncio
import re
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import orjson
import pytest
from pydantic import ByteSize

from app.compile_request_functions import FUNCTIONS
from app.main import Application, create_app
from app.server.write_batch import flush
from app.settings import Settings
from tests.for_each import for_each
from tests.parsed import parsed
from tests.server.connections import configured, connect, until

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"## From the socket to the kernel\n(.*?)\n## ", re.DOTALL)
CALL = re.compile(r"^(\d+)\. `(app/[^`]+\.py)` `([^`]+)`", re.MULTILINE)
MOST = {"JSON": 16, "safetensors": 14, "gRPC": 18}
"""Calls that the way of a request may have."""
SIBLINGS = (
    ("/compiled/read_elements.py", "/read_elements.py"),
    ("/compiled/", "/"),
    ("/kernels/numba_cpu/gather_kernel.py", "/kernels/reference/__init__.py"),
)
"""Files of compiled code, and those in Python that stand in for them here."""
Called = list[tuple[str, str]]

DATA, INDICES = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([[0, 0], [1, 1]])


def listed() -> dict[str, Called]:
    """The calls of each list, as files and names."""
    found: list[Called] = []
    section = SECTION.search((ROOT / "docs/architecture.md").read_text())
    assert section is not None
    for number, path, name in CALL.findall(section[1]):
        if number == "1":
            found.append([])
        assert int(number) == len(found[-1]) + 1
        found[-1].append((path, name))
    return dict(zip(MOST, found, strict=True))


@for_each("way", list(MOST))
def test_the_way_to_the_kernel_is_short_and_meets_no_module_twice(way: str) -> None:
    calls = listed()[way]
    assert len(calls) <= MOST[way]
    assert len({path for path, _ in calls}) == len(calls)


@for_each("way", list(MOST))
def test_each_call_on_the_way_is_of_a_function_that_exists(way: str) -> None:
    for path, name in listed()[way]:
        defined = {
            node.name
            for node in ast.walk(parsed((ROOT / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name.rpartition(".")[2] in defined, (path, name)


def stand_in(path: str) -> str:
    for compiled, plain in SIBLINGS:
        path = path.replace(compiled, plain)
    return path


async def called_by(work: Callable[[], Awaitable[None]]) -> Called:
    """The functions of the service that `work` calls, in the order of their first calls."""
    calls: dict[tuple[str, str], None] = {}
    folder = f"{ROOT}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{folder}app/"):
            calls.setdefault((code.co_filename.removeprefix(folder), code.co_qualname.replace("<locals>.", "")))

    sys.setprofile(note)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return [*calls]


async def over_http(app: Application, media_type: bytes, body: bytes) -> Called:
    connection, transport = connect(app)
    head = b"POST /gathernd HTTP/1.1\r\nhost: localhost\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"

    async def ask() -> None:
        connection.data_received(head % (media_type, len(body)) + body)
        await until(lambda: connection.cycle.response_complete)

    await ask()
    calls = await called_by(ask)
    flush()
    connection.connection_lost(None)
    assert transport.written.count(b"HTTP/1.1 200 ") == 2
    return calls


async def as_json(app: Application) -> Called:
    body = {
        "data": {"dtype": "float32", "shape": [2, 2], "values": DATA.reshape(-1).tolist()},
        "indices": {"dtype": "int64", "shape": [2, 2], "values": INDICES.reshape(-1).tolist()},
    }
    return await over_http(app, b"application/json", orjson.dumps(body))


async def as_safetensors(app: Application) -> Called:
    size = DATA.nbytes
    header = orjson.dumps(
        {
            "data": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, size]},
            "indices": {"dtype": "I64", "shape": [2, 2], "data_offsets": [size, size + INDICES.nbytes]},
        }
    )
    body = struct.pack("<Q", len(header)) + header + DATA.tobytes() + INDICES.tobytes()
    return await over_http(app, b"application/x-safetensors", body)


async def over_grpc(app: Application) -> Called:
    grpc = pytest.importorskip("grpc")
    from app.grpc_from_settings import grpc_listener
    from tests.grpc_api.messages import example

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    listener: Any = grpc_listener(app, [address])
    await listener.start(None)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            message = example().SerializeToString()

            async def ask() -> None:
                assert await call(message)

            await ask()
            return await called_by(ask)
    finally:
        await listener.stop(1.0)


WAYS = {"JSON": as_json, "safetensors": as_safetensors, "gRPC": over_grpc}


@pytest.mark.parametrize("way", list(MOST))
def test_the_calls_on_the_way_are_made_in_their_order(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(store_dir=tmp_path / "store", kernel="numpy", memory_budget=ByteSize(1 << 28))
    for function in FUNCTIONS:  # which other tests may have compiled, and then they are not seen
        monkeypatch.setattr(function.used, "run", function.used.plain)
    app = create_app(settings)
    app.readiness.done("kernels")
    with configured(settings):
        found = asyncio.run(WAYS[way](app))
    expected = [(stand_in(path), name) for path, name in listed()[way]]
    assert [one for one in found if one in expected] == expected

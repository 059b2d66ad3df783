"""Run by the Python of Triton's newest client: calls a server over HTTP and gRPC and prints, as JSON, what failed.

python script.py HTTP_ADDRESS GRPC_ADDRESS
"""

from __future__ import annotations

import asyncio
import json
import sys
from queue import Queue
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

INDICES = np.array([[1], [-3], [0]], np.int64)
NUMBERS = (
    np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, ml_dtypes.bfloat16,
    np.float32, np.float64,
)  # fmt: skip
DATA: list[Any] = [
    np.array([[True, False], [False, True], [True, True]]),
    *(np.array([[0, 1], [2, 3], [100, 127]], dtype) for dtype in NUMBERS),
    np.array([["", "ä"], ["x", "日本"], ['"\\', "z" * 300]], object),
]
checks: list[tuple[bool, str]] = []


def expect(found: object, what: str) -> None:
    checks.append((bool(found), what))


def inputs(module: Any, data: Any, indices: Any = INDICES, **options: bool) -> list[Any]:
    given = []
    for name, array in (("data", data), ("indices", indices)):
        one = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array, **options)
        given.append(one)
    return given


def same(found: Any, data: Any) -> Any:
    expected = data[[1, 0, 0]]
    if data.dtype == object:
        return [item.decode() for item in found.reshape(-1)] == expected.reshape(-1).tolist()
    return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def asked(client: Any, module: Any, what: str, **options: bool) -> None:
    for data in DATA:
        kind = f"{what} {options} {data.dtype}"
        if options and data.dtype in (np.float16, ml_dtypes.bfloat16) and not options["binary_data"]:
            continue  # the client sends them as bytes only
        found = client.infer("gathernd", inputs(module, data, **options), request_id="7")
        expect(same(found.as_numpy("output"), data), kind)
    expect(client.is_server_live() and client.is_server_ready() and client.is_model_ready("gathernd"), f"{what} health")
    try:
        client.infer("gathernd", inputs(module, DATA[1], np.array([[3]], np.int64)))
        expect(found=False, what=f"{what} out of bounds")
    except InferenceServerException as error:
        expect("is outside [-3, 2]" in str(error), f"{what} out of bounds: {error}")


async def asked_aio(client: Any, module: Any, what: str) -> None:
    for data in DATA:
        found = await client.infer("gathernd", inputs(module, data))
        expect(same(found.as_numpy("output"), data), f"{what} {data.dtype}")
    await client.close()


def streamed(client: Any) -> None:
    answers: Queue[Any] = Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for data in DATA:
        client.async_stream_infer("gathernd", inputs(tritonclient.grpc, data))
    for data in DATA:
        result, error = answers.get(timeout=60)
        expect(error is None and same(result.as_numpy("output"), data), f"stream {data.dtype}: {error}")
    client.stop_stream()


def main(http: str, grpc: str) -> None:
    http_client = tritonclient.http.InferenceServerClient(http)
    for binary in (True, False):
        asked(http_client, tritonclient.http, "http", binary_data=binary)
    grpc_client = tritonclient.grpc.InferenceServerClient(grpc)
    asked(grpc_client, tritonclient.grpc, "grpc")
    streamed(grpc_client)

    async def aio() -> None:
        await asked_aio(tritonclient.http.aio.InferenceServerClient(http), tritonclient.http, "http.aio")
        await asked_aio(tritonclient.grpc.aio.InferenceServerClient(grpc), tritonclient.grpc, "grpc.aio")

    asyncio.run(aio())
    sys.stdout.write(json.dumps({"count": len(checks), "failed": [what for found, what in checks if not found]}) + "\n")


main(*sys.argv[1:])

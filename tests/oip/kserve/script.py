"""Run by the Python of KServe's SDK: calls URL with its REST client and ADDRESS with that of gRPC, prints what came."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig  # type: ignore[import-not-found]
from kserve.inference_client import InferenceGRPCClient  # type: ignore[import-not-found]
from kserve.protocol.infer_type import RequestedOutput  # type: ignore[import-not-found]

DATA: dict[str, Any] = {
    "BOOL": np.array([[True, False], [False, True], [True, True]]),
    "INT8": np.array([[-128, 1], [2, 3], [100, 127]], np.int8),
    "INT16": np.array([[-128, 1], [2, 3], [100, 127]], np.int16),
    "INT32": np.array([[-128, 1], [2, 3], [100, 127]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1], [2, 3], [100, 127]], np.int64),
    "UINT8": np.array([[255, 1], [2, 3], [100, 127]], np.uint8),
    "UINT16": np.array([[65535, 1], [2, 3], [100, 127]], np.uint16),
    "UINT32": np.array([[2**32 - 1, 1], [2, 3], [100, 127]], np.uint32),
    "UINT64": np.array([[2**64 - 1, 2**53 + 1], [2, 3], [100, 127]], np.uint64),
    "FP16": np.array([[0.5, -0.0], [65504, 6e-8], [1, 2]], np.float16),
    "FP32": np.array([[0.1, -0.0], [3.4e38, 1e-45], [1, 2]], np.float32),
    "FP64": np.array([[0.1, -0.0], [1.7e308, 5e-324], [1, 2]], np.float64),
    "BYTES": np.array([["", "ä"], ["x", "日本"], ['"\\', "z" * 300]], object),
}
INDICES = np.array([[1], [-3], [0]], np.int64)


def request(
    datatype: str, binary: bool, binary_out: bool | None, indices: Any = INDICES, model: str = "gathernd", **more: Any
) -> InferRequest:
    inputs = []
    for name, kind, array in (("data", datatype, DATA[datatype]), ("indices", "INT64", indices)):
        one = InferInput(name, list(array.shape), kind)
        one.set_data_from_numpy(array, binary_data=binary)
        inputs.append(one)
    asked = None if binary_out is None else [RequestedOutput("output", {"binary_data": binary_out})]
    return InferRequest(model, inputs, request_outputs=asked, **more)


async def attempt(call: Awaitable[Any]) -> str:
    try:
        return str(await call)
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code} {error}"
    except grpc.RpcError as error:
        return str(error)


def text(array: Any) -> Any:
    return [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]


async def over_http(url: str) -> dict[str, Any]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    found: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "gathernd"),
        "nothing": await client.is_model_ready(url, "nothing"),
        "infers": [],
    }
    for datatype, data in DATA.items():
        for binary in (False, True):
            if datatype == "FP16" and not binary:
                continue  # the SDK does not send it in JSON
            for binary_out in (False, True, None):
                asked = request(datatype, binary, binary_out, request_id="7", parameters={"binary_data_output": True})
                answer = await client.infer(url, asked, model_name="gathernd")
                (output,) = answer.outputs
                got, expected = output.as_numpy(), data[[1, 0, 0]]
                found["infers"].append(
                    {
                        "case": [datatype, binary, binary_out],
                        "same": text(got) == text(expected) and list(got.shape) == [3, 2],
                        "datatype": output.datatype,
                        "id": answer.id,
                        "model": answer.model_name,
                    }
                )
    plain = {"inputs": request("FP32", False, None).to_rest()[0]["inputs"]}
    answer = await client.infer(url, plain, model_name="gathernd")
    found["plain"] = answer.outputs[0].data
    far = request("FP32", True, None, np.array([[3]], np.int64))
    found["far"] = await attempt(client.infer(url, far, model_name="gathernd"))
    found["missing"] = await attempt(client.infer(url, plain, model_name="nothing"))
    await client.close()
    return found


async def over_grpc(address: str) -> dict[str, Any]:
    client = InferenceGRPCClient(address)
    found: dict[str, Any] = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model": await client.is_model_ready("gathernd"),
        "infers": [],
    }
    for raw in (True, False):
        answer = await client.infer(request("FP32", raw, None, request_id="7"))
        same = text(answer.outputs[0].as_numpy()) == text(DATA["FP32"][[1, 0, 0]])
        found["infers"].append({"same": same, "id": answer.id})
    found["far"] = await attempt(client.infer(request("FP32", True, None, np.array([[3]], np.int64))))
    found["missing"] = await attempt(client.infer(request("FP32", True, None, model="nothing")))
    await client.close()
    return found


async def main(url: str, address: str) -> None:
    found = {"http": await over_http(url), "grpc": await over_grpc(address)}
    sys.stdout.write(json.dumps(found) + "\n")


asyncio.run(main(*sys.argv[1:]))

"""Run by the interpreter with KServe's SDK: its gRPC client against ADDRESS; the last line of output is JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferInput, InferRequest  # type: ignore[import-not-found]
from kserve.inference_client import InferenceGRPCClient  # type: ignore[import-not-found]

DATA = np.arange(6, dtype=np.float32).reshape(3, 2)
INDICES = np.array([[1], [-3], [0]], np.int64)


def asked(indices: Any, model: str = "gathernd", *, raw: bool = True) -> InferRequest:
    inputs = []
    for name, kind, array in (("data", "FP32", DATA), ("indices", "INT64", indices)):
        one = InferInput(name, list(array.shape), kind)
        one.set_data_from_numpy(array, binary_data=raw)
        inputs.append(one)
    return InferRequest(model_name=model, infer_inputs=inputs, request_id="7")


async def main(address: str) -> dict[str, Any]:
    client = InferenceGRPCClient(address)
    found: dict[str, Any] = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model": await client.is_model_ready("gathernd"),
        "infers": [],
    }
    for raw in (True, False):
        answer = await client.infer(asked(INDICES, raw=raw))
        same = np.array_equal(answer.outputs[0].as_numpy(), DATA[[1, 0, 0]])
        found["infers"].append({"same": bool(same), "id": answer.id, "raw": raw})
    for name, request in (("far", asked(np.array([[3]], np.int64))), ("missing", asked(INDICES, "nothing"))):
        try:
            await client.infer(request)
        except Exception as error:  # noqa: BLE001  (what kind it is, is the SDK's affair)
            found[name] = str(error)
    await client.close()
    return found


sys.stdout.write(f"{json.dumps(asyncio.run(main(sys.argv[1])))}\n")

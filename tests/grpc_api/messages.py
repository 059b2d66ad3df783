"""Messages of the protocol, made and sent with Triton's own classes and nothing of `app.formats`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np

from app.errors import CATALOGUE
from tests.oip.bodies import Array, octets

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the client's own dependencies
    from tritonclient.grpc import service_pb2, service_pb2_grpc

pb: Any = service_pb2
FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def items(array: Array) -> list[Any]:
    """The items as protobuf's classes take them."""
    flat: list[Any] = array.reshape(-1).tolist()
    return [text.encode() if isinstance(text, str) else text for text in flat]


def request(
    arrays: Mapping[str, tuple[str, Array]],
    model: str = "gathernd",
    *,
    typed: bool = False,
    parameters: Mapping[str, Any] | None = None,
    **members: Any,
) -> Any:
    """A ModelInferRequest whose items are raw, or in `contents`."""
    made = pb.ModelInferRequest(model_name=model, **members)
    for name, (datatype, array) in arrays.items():
        one = made.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if typed:
            getattr(one.contents, FIELDS[datatype]).extend(items(array))
        else:
            made.raw_input_contents.append(octets(array))
    for name, value in (parameters or {}).items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(made.parameters[name], field, value)
    return made


def example(**options: Any) -> Any:
    """Rows 1 and 0 of a matrix."""
    data, indices = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([[1], [0]], np.int64)
    return request({"data": ("FP32", data), "indices": ("INT64", indices)}, **options)


class Channel:
    """A connection: `call("ModelInfer", request)` gives the answer, or raises grpc.RpcError."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        self.stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, method: str, message: Any, timeout: float = 60, **metadata: str) -> Any:
        given = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        return getattr(self.stub, method)(message, timeout=timeout, metadata=given)

    def with_call(self, method: str, message: Any, **metadata: str) -> Any:
        given = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        return getattr(self.stub, method).with_call(message, timeout=60, metadata=given)

    def refused(self, method: str, message: Any, timeout: float = 60, **metadata: str) -> tuple[str, dict[str, Any]]:
        """The status of a call that is refused, and its problem body."""
        status, problem = self.attempt(method, message, timeout, **metadata)
        assert status != "OK", "the call was not refused"
        return status, problem

    def attempt(self, method: str, message: Any, timeout: float = 60, **metadata: str) -> tuple[str, Any]:
        """The status of a call, and its answer or its problem body."""
        try:
            return "OK", self.call(method, message, timeout, **metadata)
        except grpc.RpcError as error:
            return judged(error)


def judged(error: Any) -> tuple[str, dict[str, Any]]:
    """Status and problem body of an error, which are held to each other."""
    trailing = dict(error.trailing_metadata() or ())
    raw = trailing.get("gathernd-problem-bin")
    if raw is None:
        return error.code().name, {}
    assert len(raw) <= 4096
    problem: dict[str, Any] = json.loads(raw)
    assert problem["request_id"] == trailing["x-request-id"]
    assert problem["hint"]
    assert error.code().name == CATALOGUE[problem["code"]].grpc_status
    return error.code().name, problem


def output(answer: Any, dtype: Any) -> Array:
    """The only output of an answer."""
    (described,) = answer.outputs
    (raw,) = answer.raw_output_contents
    return np.frombuffer(raw, dtype).reshape(tuple(described.shape))

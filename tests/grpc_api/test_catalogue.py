"""Codes over gRPC that no case of the conformance table has, each with its status: of one request, and of a state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import numpy as np
import pytest

from app.errors.catalogue import CATALOGUE
from app.security import api_keys
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer, StartGrpc, port_of
from tests.grpc_api.http2 import Http2, conversation
from tests.grpc_api.messages import Channel, example, judged, pb, request
from tests.grpc_api.test_hostile import send
from tests.http.conftest import Start
from tests.http.test_tensors_disk import file_of
from tests.oip.bodies import Array

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def gather(model: str = "gathernd", data: Array = DATA, indices: Any = ((1,), (0,)), **more: Any) -> Any:
    arrays = {"data": ("FP32", data), "indices": ("INT64", np.array(indices, np.int64))}
    if "updates" in more:
        arrays["updates"] = ("FP32", more.pop("updates"))
    return request(arrays, model, **more)


def as_datatype(datatype: str, values: bytes) -> Any:
    made = gather(data=np.zeros(1, np.float32), indices=((0,),))
    made.inputs[0].datatype = datatype
    made.raw_input_contents[0] = values
    return made


PROVOKED: dict[str, tuple[str, Any]] = {
    "malformed_request": ("ModelInfer", pb.ModelInferRequest(model_name="gathernd", raw_input_contents=[b"1"])),
    "not_found": ("Nothing", b""),
    "model_not_found": ("ModelReady", pb.ModelReadyRequest(name="nothing")),
    "invalid_field": ("ModelInfer", gather(parameters={"batch_dims": "x"})),
    "value_not_representable": ("ModelInfer", as_datatype("BOOL", b"\2")),
    "index_out_of_bounds": ("ModelInfer", gather(indices=((3,),))),
    "deadline_exceeded": ("ModelInfer", gather(parameters={"timeout": 1})),
    "not_implemented": ("LogSettings", pb.LogSettingsRequest()),
}  # fmt: skip


@pytest.fixture(scope="module")
def channel(grpc_server: GrpcServer) -> Iterator[Channel]:
    put_rows(grpc_server)
    with Channel(grpc_server.address) as made:
        yield made


def put_rows(server: GrpcServer) -> None:
    with server.http.client() as client:
        headers = {"content-type": "application/octet-stream"}
        put = client.put("/tensors/rows?dtype=float32&shape=3,4", content=DATA.tobytes(), headers=headers)
        assert put.status_code in (200, 201)


@for_each("code", PROVOKED)
def test_a_broken_request(channel: Channel, code: str) -> None:
    method, message = PROVOKED[code]
    if hasattr(channel.stub, method):
        status, problem = channel.refused(method, message)
    else:
        raw: Any = channel.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            raw(message, timeout=20)
        status, problem = judged(caught.value)
    assert (problem["code"], status) == (code, CATALOGUE[code].grpc_status), problem  # type: ignore[index]


@for_each("code", PROVOKED)
def test_a_broken_request_of_a_stream(channel: Channel, code: str) -> None:
    method, message = PROVOKED[code]
    if method != "ModelInfer":
        return
    (answer,) = channel.stub.ModelStreamInfer(iter((message,)), timeout=20)
    assert answer.error_message
    assert f'"code":"{code}"' in answer.infer_response.parameters["problem"].string_param.replace(" ", "")


def refused(channel: Channel, code: str, message: Any = None, **metadata: str) -> dict[str, Any]:
    status, problem = channel.refused("ModelInfer", example() if message is None else message, 20, **metadata)
    assert (problem["code"], status) == (code, CATALOGUE[code].grpc_status), problem  # type: ignore[index]
    return problem


def test_keys_that_are_missing_or_not_for_this(start_grpc: StartGrpc, tmp_path: Path) -> None:
    key = api_keys.add(tmp_path / "keys", "a", ["tensors"])
    with start_grpc("--api-keys-file", str(tmp_path / "keys")) as server, Channel(server.address) as channel:
        refused(channel, "unauthorized")
        refused(channel, "forbidden", authorization=f"Bearer {key}")


def test_a_service_that_is_full_slow_or_damaged(start_grpc: StartGrpc, tmp_path: Path) -> None:
    flags = (
        "--memory-budget", "32MiB", "--grpc-max-message-bytes", "1MiB", "--max-requests", "2",
        "--store-dir", str(tmp_path / "store"),
    )  # fmt: skip
    with start_grpc(*flags) as server, Channel(server.address) as channel:
        put_rows(server)
        rows = request({"indices": ("INT64", np.array([[1]]))}, "rows")
        channel.call("ModelInfer", rows)
        with file_of(tmp_path / "store", "rows").open("ab") as file:
            file.write(b"more")
        refused(channel, "tensor_damaged", rows)
        zeros = gather(data=np.zeros((1000, 1000), np.float32))
        with pytest.raises(grpc.RpcError) as caught:
            channel.stub.ModelInfer(zeros, timeout=20, compression=grpc.Compression.Gzip)
        status, problem = judged(caught.value)
        assert (problem["code"], status) == ("payload_too_large", "RESOURCE_EXHAUSTED")
        with Http2(server.port) as silent:
            for stream in (1, 3):
                silent.open(stream)
            sleep(0.3)
            refused(channel, "overloaded")


def test_a_service_that_is_not_ready(start: Start) -> None:
    faulty = (sys.executable, "-m", "tests.http.faulty_app", "starting")
    with (
        start("--grpc-port", "0", command=faulty, ready=False) as server,
        Channel(f"127.0.0.1:{port_of(server)}") as channel,
    ):
        refused(channel, "not_ready")


def test_a_service_that_fails(start: Start) -> None:
    faulty = (sys.executable, "-m", "tests.http.faulty_app", "broken")
    with (
        start("--grpc-port", "0", command=faulty, tracebacks=True) as server,
        Channel(f"127.0.0.1:{port_of(server)}") as channel,
    ):
        refused(channel, "internal")


def test_metadata_that_is_too_large_has_a_status_of_grpcs_own(start_grpc: StartGrpc) -> None:
    with start_grpc("--max-header-bytes", "8KiB") as server, Channel(server.address) as channel:
        status, problem = channel.attempt("ModelInfer", example(), x_large="z" * 50_000)
        assert status == "RESOURCE_EXHAUSTED"
        assert not problem


def test_a_coding_that_there_is_not_has_a_status_of_grpcs_own(grpc_server: GrpcServer) -> None:

    message = example().SerializeToString()
    answer = send(grpc_server, b"".join(conversation(message, ("grpc-encoding", "br"), flag=1)), 1)
    assert b"gathernd-problem-bin" not in answer
    assert answer

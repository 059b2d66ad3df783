"""Codes over gRPC of a state of the service, each with its status; the conformance table has those of a request."""

from __future__ import annotations

import sys
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import numpy as np
import pytest

from app.errors import CATALOGUE
from tests.grpc_api.conftest import GrpcServer, StartGrpc, port_of
from tests.grpc_api.http2 import Http2, conversation
from tests.grpc_api.messages import Channel, example, judged, request
from tests.grpc_api.test_hostile import send
from tests.http.conftest import Start
from tests.http.test_tensors_disk import file_of

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def put_rows(server: GrpcServer) -> None:
    with server.http.client() as client:
        headers = {"content-type": "application/octet-stream"}
        put = client.put("/tensors/rows?dtype=float32&shape=3,4", content=DATA.tobytes(), headers=headers)
        assert put.status_code in (200, 201)


def refused(channel: Channel, code: str, message: Any = None, **metadata: str) -> dict[str, Any]:
    status, problem = channel.refused("ModelInfer", example() if message is None else message, 20, **metadata)
    assert (problem["code"], status) == (code, CATALOGUE[code].grpc_status), problem  # type: ignore[index]
    return problem


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
        arrays = {"data": ("FP32", np.zeros((1000, 1000), np.float32)), "indices": ("INT64", np.array([[0]]))}
        zeros = request(arrays)
        with pytest.raises(grpc.RpcError) as caught:
            channel.stub.ModelInfer(zeros, timeout=60, compression=grpc.Compression.Gzip)
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


def test_a_coding_that_there_is_not_has_a_status_of_grpcs_own(grpc_server: GrpcServer) -> None:

    message = example().SerializeToString()
    answer = send(grpc_server, b"".join(conversation(message, ("grpc-encoding", "br"), flag=1)), 1)
    assert b"gathernd-problem-bin" not in answer
    assert answer

"""Infer requests with messages as clients write them: raw items and items in contents, errors, limits, keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import numpy as np
import pytest

from app.formats.grpc.infer_request import parse, read_grpc_request
from app.formats.grpc.message_fields import split
from app.memory.budget import UNCOUNTED
from app.security import api_keys
from app.tensors.shape_limits import Limits
from tests.costly_bodies.read_body import MODEL
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer, StartGrpc
from tests.grpc_api.messages import Channel, example, judged, pb, request
from tests.oip.bodies import Array

Arrays = dict[str, tuple[str, Array]]
HEALTH_CHECK = b"\x0a\x1einference.GRPCInferenceService"


@pytest.fixture(scope="module")
def channel(grpc_server: GrpcServer) -> Iterator[Channel]:
    with Channel(grpc_server.address) as made:
        yield made


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "contents"])
@pytest.mark.parametrize("beside", [0, 20])
def test_a_string_beyond_the_limit_is_one_wherever_the_request_has_it(typed: bool, beside: int) -> None:
    data = np.array(["short", "of ten by."] + ["short"] * beside, object)
    arrays: Arrays = {"data": ("BYTES", data), "indices": ("INT64", np.array([[0]]))}
    for most, exceeded in ((9, True), (10, False)):
        found = split(request(arrays, typed=typed).SerializeToString(), 1)
        assert found is not None
        over_limit = read_grpc_request(
            parse(found, UNCOUNTED), MODEL, Limits(string_bytes=most), UNCOUNTED
        ).call.over_limit
        assert (over_limit is not None) == exceeded
        if over_limit is not None:
            places = [place.pointer for place in over_limit.places]
            assert (over_limit.code, over_limit.facts["limit"]) == ("limit_exceeded", "string_bytes")
            assert places == ["/inputs/0/contents/bytes_contents/1" if typed else "/inputs/0"]


def broken(change: str) -> Any:
    """Example 1 with a mistake that only a message can have, or one of its indices out of bounds."""
    made = example()
    if change == "raw missing":
        del made.raw_input_contents[1]
    else:
        made.raw_input_contents[1] = np.array([1, 5]).tobytes()
    return made


@for_each(("change", "code"), [("raw missing", "malformed_request"), ("bounds", "index_out_of_bounds")])
def test_mistakes_in_a_stream(channel: Channel, change: str, code: str) -> None:
    (answer,) = channel.stub.ModelStreamInfer(iter((broken(change),)), timeout=60)
    assert answer.error_message
    assert f'"code":"{code}"' in answer.infer_response.parameters["problem"].string_param.replace(" ", "")


def test_ids_times_metrics_and_traces_follow_a_call(channel: Channel, grpc_server: GrpcServer) -> None:
    _, call = channel.with_call("ModelInfer", example(), x_request_id="mine-1")
    trailing = dict(call.trailing_metadata())
    assert trailing["x-request-id"] == "mine-1"
    assert trailing["server-timing"].startswith("parse;dur=")
    _, call = channel.with_call("ModelInfer", example())
    assert "x-request-id" not in dict(call.trailing_metadata())
    _, problem = channel.refused("ModelInfer", broken("bounds"), x_request_id="mine-2")
    assert problem["request_id"] == "mine-2"
    with grpc_server.http.client() as client:
        text = client.get("/metrics").text
    assert 'gathernd_grpc_requests_total{code="OK",method="ModelInfer"}' in text
    assert 'gathernd_grpc_requests_total{code="OUT_OF_RANGE",method="ModelInfer"}' in text
    path = "/inference.GRPCInferenceService/ModelInfer"
    assert f'gathernd_requests_total{{method="POST",path="{path}",status="200"}}' in text
    assert f'gathernd_stage_seconds_total{{path="{path}",stage="kernel"}}' in text


def test_what_is_not_offered(channel: Channel) -> None:
    for method, message in (
        ("LogSettings", pb.LogSettingsRequest()),
        ("TraceSetting", pb.TraceSettingRequest()),
        ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
        ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest()),
    ):
        status, problem = channel.refused(method, message)
        assert (status, problem["code"]) == ("UNIMPLEMENTED", "not_implemented")
    raw: Any = channel.channel
    with pytest.raises(grpc.RpcError) as caught:
        raw.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=60)
    assert caught.value.code().name == "UNIMPLEMENTED"


def test_health(channel: Channel) -> None:
    raw: Any = channel.channel
    check = raw.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=60) == check(HEALTH_CHECK, timeout=60) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as caught:
        check(b"\x0a\x01x", timeout=60)
    assert caught.value.code().name == "NOT_FOUND"
    watch = raw.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
    assert next(watch) == b"\x08\x01"
    watch.cancel()


def test_a_deadline_that_has_passed(channel: Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        next(channel.stub.ModelStreamInfer(iter(lambda: sleep(5), 0), timeout=0.3))
    assert caught.value.code().name == "DEADLINE_EXCEEDED"
    status, _ = channel.refused("ModelInfer", example(parameters={"timeout": 1}))
    assert status == "DEADLINE_EXCEEDED"


def test_limits_of_messages_outputs_and_metadata(start_grpc: StartGrpc) -> None:
    flags = ("--grpc-max-message-bytes", "64KiB", "--max-output-bytes", "64KiB", "--max-header-bytes", "8KiB")
    with start_grpc(*flags) as server, Channel(server.address) as channel:
        data: Arrays = {"data": ("FP32", np.zeros(20_000, np.float32)), "indices": ("INT64", np.array([[0]]))}
        for _ in range(10):  # gRPC and we refuse it at once: whose answer comes first changes
            assert channel.refused("ModelInfer", request(data))[0] == "RESOURCE_EXHAUSTED"
        compressed = channel.stub.ModelInfer
        bomb: Arrays = {"data": ("FP32", np.zeros(10_000_000, np.float32)), "indices": ("INT64", np.array([[0]]))}
        with pytest.raises(grpc.RpcError) as caught:
            compressed(request(bomb), timeout=60, compression=grpc.Compression.Gzip)
        status, problem = judged(caught.value)
        assert (status, problem["limit"], problem["maximum"]) == ("RESOURCE_EXHAUSTED", "message_bytes", 65536)
        assert problem["detail"] == "the message is larger than the limit of 65536 bytes"
        assert (
            problem["hint"] == "Send at most 65536 bytes, or have the operator raise GATHERND_GRPC_MAX_MESSAGE_BYTES."
        )
        many: Arrays = {
            "data": ("FP32", np.zeros((2, 5000), np.float32)),
            "indices": ("INT64", np.zeros((100, 1), np.int64)),
        }
        status, problem = channel.refused("ModelInfer", request(many))
        assert (status, problem["code"]) == ("RESOURCE_EXHAUSTED", "output_too_large")
        assert channel.attempt("ModelInfer", example(), x_large="z" * 50_000) == ("RESOURCE_EXHAUSTED", {})
        assert channel.call("ModelInfer", example()).model_name == "gathernd"


def test_keys(start_grpc: StartGrpc, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key, other = api_keys.add(keys, "a", ["gather"]), api_keys.add(keys, "b", ["tensors"])
    with start_grpc("--api-keys-file", str(keys)) as server, Channel(server.address) as channel:
        assert channel.refused("ModelInfer", example())[1]["code"] == "unauthorized"
        assert channel.refused("ModelInfer", example(), authorization="Bearer x")[0] == "UNAUTHENTICATED"
        assert channel.refused("ModelMetadata", pb.ModelMetadataRequest(name="gather"))[0] == "UNAUTHENTICATED"
        assert channel.refused("LogSettings", pb.LogSettingsRequest())[0] == "UNAUTHENTICATED"
        assert channel.refused("ModelInfer", example(), authorization=f"Bearer {other}")[1]["code"] == "forbidden"
        assert channel.call("ServerReady", pb.ServerReadyRequest()).ready
        assert channel.call("ModelInfer", example(), authorization=f"Bearer {key}").model_name == "gathernd"

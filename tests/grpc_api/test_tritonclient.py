"""Unmodified Triton clients, sync, aio and of streams: every method that they have, and 1,000 requests in flight."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest

from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer
from tests.oip.bodies import NUMPY, same
from tests.oip.test_tritonclient import DATA, INDICES, Caller, text

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the client's own dependencies
    import tritonclient.grpc as triton
    import tritonclient.grpc.aio as triton_aio
    from tritonclient.utils import InferenceServerException

IN_FLIGHT = 1000


@pytest.fixture(scope="module", params=["sync", "aio"])
def caller(request: pytest.FixtureRequest, grpc_server: GrpcServer) -> Iterator[Caller]:
    module = triton_aio if request.param == "aio" else triton
    made = Caller(lambda: module.InferenceServerClient(grpc_server.address), is_async=request.param == "aio")
    yield made
    made.close()


def inputs(datatype: str = "FP32", indices: Any = INDICES) -> list[Any]:
    made = []
    for name, kind, array in (("data", datatype, DATA[datatype]), ("indices", "INT64", indices)):
        one = triton.InferInput(name, list(array.shape), kind)
        one.set_data_from_numpy(array)
        made.append(one)
    return made


@for_each("datatype", NUMPY)
@for_each("compression", [None, "gzip", "deflate"])
def test_infer_of_every_datatype(caller: Caller, datatype: str, compression: str | None) -> None:
    asked = [triton.InferRequestedOutput("output")]
    answer = caller.infer(
        "gathernd", inputs(datatype), "1", outputs=asked, request_id="7", compression_algorithm=compression
    )
    assert same(text(answer.as_numpy("output")), DATA[datatype][[1, 0, 0]])
    assert answer.get_response().id == "7"


def test_parameters_headers_and_timeouts(caller: Caller) -> None:
    answer = caller.infer(
        "gather",
        inputs("INT32"),
        parameters={"axis": 0, "dialect": "onnx-11"},
        sequence_id=3,
        sequence_start=True,
        sequence_end=True,
        priority=2,
        timeout=10_000_000,
        client_timeout=60,
        headers={"x-request-id": "abc"},
    )
    assert answer.as_numpy("output").shape == (3, 1, 2)
    assert answer.get_response().parameters["dialect"].string_param == "onnx-11"


def test_errors(caller: Caller) -> None:
    def refused(method: str, *args: Any, **kwargs: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            getattr(caller, method)(*args, **kwargs)
        return f"{caught.value.status()} {caught.value.message()}"

    assert refused("infer", "nothing", inputs()) == "StatusCode.NOT_FOUND no model is named 'nothing'"
    assert refused("infer", "gathernd", inputs()[:1]).startswith("StatusCode.INVALID_ARGUMENT the input 'indices'")
    far = inputs(indices=np.array([[3]], np.int64))
    assert refused("infer", "gathernd", far).startswith("StatusCode.OUT_OF_RANGE indices[0,0] = 3 is outside [-3, 2]")
    for method in ("get_log_settings", "get_trace_settings", "get_system_shared_memory_status"):
        assert refused(method).startswith("StatusCode.UNIMPLEMENTED ")
    assert refused("load_model", "nothing").startswith("StatusCode.NOT_FOUND ")
    assert refused("get_model_config", "gather", "2").startswith("StatusCode.NOT_FOUND ")


def test_health_metadata_config_statistics_and_repository(caller: Caller) -> None:
    assert caller.is_server_live()
    assert caller.is_server_ready()
    assert caller.is_model_ready("gathernd", "1")
    assert caller.get_server_metadata().name == "gathernd"
    metadata = caller.get_model_metadata("gather")
    assert [one.name for one in metadata.inputs] == ["data", "indices"]
    assert metadata.versions == ["1"]
    config = caller.get_model_config("gather", as_json=True)["config"]
    assert config["backend"] == "gathernd"
    assert [one["data_type"] for one in config["input"]] == ["TYPE_FP32", "TYPE_INT64"]
    before = caller.get_inference_statistics("gathernd").model_stats[0].inference_stats
    caller.infer("gathernd", inputs())
    with pytest.raises(InferenceServerException):
        caller.infer("gathernd", inputs()[:1])
    after = caller.get_inference_statistics("gathernd").model_stats[0].inference_stats
    assert after.success.count == before.success.count + 1
    assert after.fail.count == before.fail.count + 1
    assert after.compute_infer.ns > before.compute_infer.ns
    assert len(caller.get_inference_statistics().model_stats) >= 6
    index = caller.get_model_repository_index()
    assert {"gathernd", "gather", "lookup"} <= {one.name for one in index.models if one.state == "READY"}
    caller.load_model("gather")
    caller.unload_model("gather")


def test_a_stream_with_a_thousand_requests_in_flight(grpc_server: GrpcServer) -> None:
    answers: Queue[tuple[Any, Any]] = Queue()
    with triton.InferenceServerClient(grpc_server.address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(IN_FLIGHT):
            indices = np.array([[number % 3 if number % 10 else 7]], np.int64)
            client.async_stream_infer("gathernd", inputs(indices=indices), request_id=str(number))
        found = [answers.get(timeout=60) for _ in range(IN_FLIGHT)]
        client.stop_stream()
    for number, (result, error) in enumerate(found):
        if number % 10:
            assert error is None
            assert result.get_response().id == str(number)
            assert same(result.as_numpy("output"), DATA["FP32"][[number % 3]])
        else:
            assert "is outside" in error.message()

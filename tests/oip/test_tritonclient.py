"""The unmodified Triton client, sync and aio, against a running server: every method that it has."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.http.server import Server
from tests.oip.bodies import NUMPY, Array, same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the client's own dependencies
    import tritonclient.http as triton
    import tritonclient.http.aio as triton_aio
    from tritonclient.utils import InferenceServerException, triton_to_np_dtype

INDICES = np.array([[1], [-3], [0]], np.int64)
BF16: Any = triton_to_np_dtype("BF16")
"""float32, of which the client keeps the upper half of the bits; bfloat16 where the client is newer."""
DATA: dict[str, Array] = {
    "BOOL": np.array([[True, False], [False, True], [True, True]]),
    **{name: np.array([[0, 1], [2, 3], [100, 127]], NUMPY[name]) for name in NUMPY if "INT" in name},
    "FP16": np.array([[0.5, -0.0], [65504, 6e-8], [1, 2]], np.float16),
    "BF16": np.array([[0.5, -0.0], [1.5, -3.0], [1, 2]], BF16),
    "FP32": np.array([[0.1, -0.0], [np.inf, 1e-45], [np.nan, 2]], np.float32),
    "FP64": np.array([[0.1, -0.0], [-np.inf, 5e-324], [np.nan, 2]], np.float64),
    "BYTES": np.array([["", "ä"], ["\0", "日本"], ['"\\', "z" * 300]], object),
}
Call = Callable[..., Any]


class Caller:
    """One of the two clients, whose methods are called alike."""

    def __init__(self, client: Callable[[], Any], *, is_async: bool) -> None:
        self.is_async = is_async
        self.runner = asyncio.Runner()
        self.client: Any = self.runner.run(_made(client)) if is_async else client()

    def __getattr__(self, name: str) -> Call:
        method = getattr(self.client, name)
        if not inspect.iscoroutinefunction(method):
            return method  # type: ignore[no-any-return]
        return lambda *args, **kwargs: self.runner.run(method(*args, **kwargs))

    def close(self) -> None:
        if self.is_async:
            self.runner.run(self.client.close())
        else:
            self.client.close()
        self.runner.close()


async def _made(client: Callable[[], Any]) -> Any:
    return client()


@pytest.fixture(scope="module", params=["sync", "aio"])
def caller(request: pytest.FixtureRequest, server: Server) -> Iterator[Caller]:
    module = triton_aio if request.param == "aio" else triton
    made = Caller(lambda: module.InferenceServerClient(f"127.0.0.1:{server.port}"), is_async=request.param == "aio")
    yield made
    made.close()


def inputs(datatype: str, data: Array, indices: Array = INDICES, *, binary: bool = True) -> list[Any]:
    made = []
    for name, kind, array in (("data", datatype, data), ("indices", "INT64", indices)):
        one = triton.InferInput(name, list(array.shape), kind)
        # The client sends BF16 in binary only.
        one.set_data_from_numpy(array, binary_data=binary or kind == "BF16")
        made.append(one)
    return made


def text(array: Array) -> Array:
    """Strings come as bytes from a binary answer."""
    if array.dtype != np.object_:
        return array
    made = np.array([item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1)], object)
    return made.reshape(array.shape)


@for_each("datatype", NUMPY)
@for_each("binary_in", [False, True])
@for_each("binary_out", [False, True, None])
@for_each("compression", slow_but_for((None, "gzip"), (None, "gzip", "deflate")))
def test_infer_of_every_datatype(
    caller: Caller, datatype: str, binary_in: bool, binary_out: bool | None, compression: str | None
) -> None:
    data = DATA[datatype]
    answer = caller.infer(
        "gathernd",
        inputs(datatype, data, binary=binary_in),
        model_version="1",
        outputs=None if binary_out is None else [triton.InferRequestedOutput("output", binary_data=binary_out)],
        request_id="7",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    found = text(answer.as_numpy("output"))
    expected = data[[1, 0, 0]]
    if binary_out is False and datatype.startswith("FP"):
        assert np.array_equal(found, expected, equal_nan=True)
    else:
        assert same(found, expected)
    assert answer.get_response()["id"] == "7"
    described = answer.get_output("output")
    assert described["datatype"] == datatype
    assert ("data" in described) == (binary_out is False)
    assert answer.as_numpy("other") is None


def test_protocol_parameters(caller: Caller) -> None:
    answer = caller.infer(
        "gathernd",
        inputs("FP32", DATA["FP32"]),
        sequence_id=3,
        sequence_start=True,
        sequence_end=True,
        priority=2,
        timeout=10_000_000,
        headers={"x-request-id": "abc"},
        query_params={"test": 1},
    )
    assert answer.as_numpy("output").shape == (3, 2)
    assert "id" not in answer.get_response()
    with pytest.raises(InferenceServerException, match="deadline") as caught:
        caller.infer("gathernd", inputs("FP32", DATA["FP32"]), timeout=1)
    assert caught.value.status() == "503"


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_errors(caller: Caller, compression: str | None) -> None:
    def message(model: str, given: list[Any], version: str = "", **options: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            caller.infer(
                model,
                given,
                version,
                request_compression_algorithm=compression,
                response_compression_algorithm=compression,
                **options,
            )
        return f"{caught.value.status()} {caught.value.message()}"

    good = inputs("FP32", DATA["FP32"])
    assert message("nothing", good) == "404 no model is named 'nothing'"
    assert message("gathernd", good, "2").startswith("404 the model 'gathernd' has no version '2'")
    assert message("gathernd", good[:1]) == "422 the input 'indices' is missing"
    assert "given twice" in message("gathernd", [*good, good[0]])
    assert "'other' is not an output" in message("gathernd", good, outputs=[triton.InferRequestedOutput("other")])
    classes = triton.InferRequestedOutput("output", class_count=3)
    assert message("gathernd", good, outputs=[classes]).startswith("501 ")
    far = inputs("FP32", DATA["FP32"], np.array([[3]], np.int64))
    assert message("gathernd", far) == "422 indices[0,0] = 3 is outside [-3, 2] on data axis 0 (size 3)"
    shared = triton.InferInput("data", [3, 2], "FP32")
    shared.set_shared_memory("region", 24)
    assert message("gathernd", [shared, good[1]]).startswith("501 shared memory")
    into = triton.InferRequestedOutput("output")
    into.set_shared_memory("region", 24)
    assert message("gathernd", good, outputs=[into]).startswith("501 shared memory")


def test_health_and_metadata(caller: Caller) -> None:
    assert caller.is_server_live()
    assert caller.is_server_ready()
    assert caller.is_model_ready("gathernd")
    assert caller.is_model_ready("gather", "1")
    assert not caller.is_model_ready("gather", "2")
    assert not caller.is_model_ready("nothing")
    server = caller.get_server_metadata()
    assert server["name"] == "gathernd"
    assert {"binary_tensor_data", "statistics", "model_repository", "model_configuration"} <= set(server["extensions"])
    model = caller.get_model_metadata("gathernd")
    assert model == caller.get_model_metadata("gathernd", "1")
    assert [tensor["name"] for tensor in model["inputs"]] == ["data", "indices"]
    assert [tensor["name"] for tensor in model["outputs"]] == ["output"]
    assert model["versions"] == ["1"]
    config = caller.get_model_config("gather", "1")
    assert config["name"] == "gather"
    assert config["max_batch_size"] == 0
    assert [tensor["data_type"] for tensor in config["input"]] == ["TYPE_FP32", "TYPE_INT64"]
    for method in ("get_model_metadata", "get_model_config"):
        with pytest.raises(InferenceServerException, match="no model is named 'nothing'"):
            getattr(caller, method)("nothing")


def test_repository(caller: Caller) -> None:
    index = {entry["name"]: entry for entry in caller.get_model_repository_index()}
    assert index["gathernd"] == {"name": "gathernd", "version": "1", "state": "READY", "reason": ""}
    assert "gather" in index
    caller.load_model("gathernd")
    caller.load_model("gathernd", config="{}", files={"file:1/model.onnx": b"x"})
    caller.unload_model("gather", unload_dependents=True)
    assert caller.is_model_ready("gather")
    for method in ("load_model", "unload_model"):
        with pytest.raises(InferenceServerException, match="no model is named 'nothing'"):
            getattr(caller, method)("nothing")


def test_statistics_have_real_counts_and_times(caller: Caller) -> None:
    def numbers(**named: str) -> dict[str, Any]:
        (found,) = (one for one in caller.get_inference_statistics(**named)["model_stats"] if one["name"] == "gathernd")
        assert isinstance(found, dict)
        return found

    before = numbers()
    for _ in range(3):
        caller.infer("gathernd", inputs("FP32", DATA["FP32"]))
    with pytest.raises(InferenceServerException):
        caller.infer("gathernd", [])
    after = numbers(model_name="gathernd", model_version="1")
    assert after["version"] == "1"
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] == after["inference_count"]
    assert after["last_inference"] > 1.6e12
    grown = {
        name: (
            now["count"] - before["inference_stats"][name]["count"],
            now["ns"] - before["inference_stats"][name]["ns"],
        )
        for name, now in after["inference_stats"].items()
    }
    assert grown["success"][0] == grown["queue"][0] == grown["compute_infer"][0] == 3
    assert grown["fail"][0] == 1
    assert grown["fail"][1] > 0
    parts = sum(grown[name][1] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < parts <= grown["success"][1] + 10
    assert all(grown[name][1] > 0 for name in ("compute_input", "compute_infer", "compute_output"))
    with pytest.raises(InferenceServerException, match="no model is named 'nothing'"):
        caller.get_inference_statistics("nothing")


def test_settings_can_be_read_and_not_changed(caller: Caller) -> None:
    assert caller.get_log_settings()["log_error"] is True
    assert caller.get_trace_settings()["trace_level"] == ["OFF"]
    assert caller.get_trace_settings("gathernd")["trace_level"] == ["OFF"]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("update_log_settings", {"settings": {"log_verbose_level": 1}}),
        ("update_trace_settings", {"settings": {"trace_rate": "1"}}),
        ("update_trace_settings", {"model_name": "gathernd", "settings": {}}),
    ]
    for method, given in changes:
        with pytest.raises(InferenceServerException) as caught:
            getattr(caller, method)(**given)
        assert caught.value.status() == "501"

"""A service with a GPU: the kernel's source on a fake of CuPy (see `faulty_app`), and a real GPU if there is one."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.kernels.gpu_interface import NoDevice
from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.held import faulty, metric, until
from tests.http.server import GATHERND, Server, run_program
from tests.http.tensors import NPY, SAFETENSORS, npy, put_raw, put_strings, save, scatter_body
from tests.kernels import emulated

TABLE = np.arange(5000 * 8, dtype=np.float32).reshape(5000, 8)


@pytest.fixture(scope="module")
def emulated_gpu() -> tuple[str, ...]:
    """What starts a service whose GPU is emulated."""
    try:
        emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))
    return faulty("gpu")


@pytest.fixture(scope="module", params=["emulated", "real"])
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What starts a service that has a GPU."""
    if request.param == "emulated":
        found: tuple[str, ...] = request.getfixturevalue("emulated_gpu")
        return found
    try:
        importlib.import_module("tests.kernels.cupy_kernel").open_device()
    except (ImportError, NoDevice) as absent:
        if "cannot be compiled" in str(absent):
            raise
        pytest.skip(f"no GPU: {absent}")
    return GATHERND, "serve"


@pytest.fixture(scope="module")
def server(start: Start, command: tuple[str, ...]) -> Iterator[Server]:
    with start(command=command) as server:
        yield server


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.shared_client()


def ask(client: httpx.Client, body: dict[str, Any], device: str, path: str = "/gathernd") -> httpx.Response:
    return client.post(path, json={**body, "device": device})


def values(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    output = answer.json()["output"]
    return np.array(output["values"]).reshape(output["shape"])


MATRIX = {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]}


def test_what_is_asked_to_run_on_the_gpu_does_and_says_so(client: httpx.Client) -> None:
    answer = ask(client, {"data": MATRIX, "indices": int64([2, 2], [0, 0, 1, 1])}, "gpu")
    assert answer.json() == {
        "output": {"dtype": "float32", "shape": [2], "values": [0.0, 3.0]}, "dialect": "onnx-13", "device": "gpu",
    }  # fmt: skip
    answer = ask(client, {"data": MATRIX, "indices": int64([1], [-1]), "axis": 1}, "gpu", "/gather")
    assert values(answer).tolist() == [[1.0], [3.0]]
    assert answer.json()["device"] == "gpu"


def test_binary_answers_and_those_of_the_inference_protocol_say_so_too(client: httpx.Client) -> None:
    body = save(data=TABLE[:3], indices=np.array([[2]]))
    answer = client.post("/gathernd", params={"device": "gpu"}, content=body, headers={"content-type": SAFETENSORS})
    assert answer.headers["x-gathernd-device"] == "gpu"
    request = {
        "inputs": [
            {"name": "data", "datatype": "FP32", "shape": [2, 2], "data": [0, 1, 2, 3]},
            {"name": "indices", "datatype": "INT64", "shape": [1, 2], "data": [1, 0]},
        ],
        "parameters": {"device": "gpu"},
    }
    found = client.post("/v2/models/gathernd/infer", json=request).json()
    assert found["parameters"]["device"] == "gpu"
    assert found["outputs"][0]["data"] == [2.0]


def test_strings_are_refused_and_run_on_the_cpu_where_the_service_may_choose(client: httpx.Client) -> None:
    body = {"data": {"dtype": "string", "shape": [2], "values": ["a", "b"]}, "indices": int64([1, 1], [1])}
    refused = ask(client, body, "gpu").json()
    assert refused["code"] == "device_unavailable"
    assert refused["errors"] == [{"pointer": "/device"}]
    assert ask(client, body, "auto").json()["device"] == "cpu"
    put_strings(client, "words", ["x", "y"])
    body["data"] = {"tensor": "words"}
    assert ask(client, body, "gpu").json()["code"] == "device_unavailable"


def test_an_operator_that_has_no_kernel_there_runs_on_the_cpu(client: httpx.Client) -> None:
    body = {"data": MATRIX, "indices": int64([1, 2], [1, 0])}
    problem = ask(client, body, "gpu", "/gather_elements").json()
    assert (problem["code"], "gather_elements runs only on the CPU" in problem["detail"]) == (
        "device_unavailable",
        True,
    )
    answer = ask(client, body, "auto", "/gather_elements")
    assert values(answer).tolist() == [[2, 1]]
    assert answer.json()["device"] == "cpu"
    explained = client.post("/gather_elements", params={"explain": "true"}, json=body).json()["explanation"]
    assert explained["routes"][0]["reason"] == "gather_elements runs only on the CPU"


def test_a_resident_tensor_is_gathered_from_the_gpu_whatever_becomes_of_it(client: httpx.Client) -> None:
    body = {"data": {"tensor": "table"}, "indices": int64([2, 1], [4999, 0])}
    for table in (TABLE, TABLE + 1):
        assert put_raw(client, "table", table).is_success
        answer = ask(client, body, "gpu")
        assert (values(answer) == table[[4999, 0]]).all()
        assert answer.json()["device"] == "gpu"
        assert answer.json()["data_etag"] == client.get("/tensors/table").headers["etag"]
    for number in range(3):
        update = np.full((1, 8), number, np.float32)
        done = client.post("/tensors/table/scatter", json=scatter_body([[0]], update))
        answer = ask(client, body, "gpu")
        assert (values(answer)[1] == number).all()
        assert answer.json()["data_etag"] == done.json()["etag"]
    client.delete("/tensors/table")
    assert ask(client, body, "gpu").json()["code"] == "tensor_not_found"


def test_metrics_tell_the_memory_of_the_gpu_and_that_dropped_tensors_leave_it(server: Server) -> None:
    client = server.shared_client()
    assert metric(server, "gathernd_gpu_memory_bytes") > 1 << 20
    client.put("/tensors/seen", content=npy(TABLE), headers={"content-type": NPY})
    assert ask(client, {"data": {"tensor": "seen"}, "indices": int64([1, 1], [0])}, "gpu").is_success
    assert metric(server, "gathernd_gpu_resident_bytes") >= TABLE.nbytes
    assert metric(server, "gathernd_gpu_used_bytes") >= TABLE.nbytes
    client.delete("/tensors/seen")
    until(lambda: metric(server, "gathernd_gpu_resident_bytes") == 0)
    assert metric(server, "gathernd_gpu_used_bytes") == 0
    assert 'gathernd_kernel_routes_total{route="gpu"}' in client.get("/metrics").text


def test_short_memory_is_refused_where_the_gpu_is_asked_for_and_the_cpu_s_work_otherwise(
    start: Start, command: tuple[str, ...]
) -> None:
    with start("--gpu-memory", "1MiB", "--device", "gpu", command=command) as server:
        client = server.shared_client()
        put_raw(client, "large", np.arange(1 << 19, dtype=np.float32).reshape(-1, 8))
        body = {"data": {"tensor": "large"}, "indices": int64([1, 1], [3])}
        refused = ask(client, body, "gpu")
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        answer = ask(client, body, "auto")
        assert (values(answer) == np.arange(24, 32)).all()
        assert answer.json()["device"] == "cpu"
        assert "gathernd_gpu_fallbacks_total 1.0" in client.get("/metrics").text
        assert "the GPU is short of memory" in server.log_text()


@pytest.mark.usefixtures("emulated_gpu")
def test_a_gpu_that_breaks_is_used_no_more_and_the_service_goes_on(start: Start) -> None:
    with start("--device", "gpu", command=faulty("breaking-gpu")) as server:
        client = server.shared_client()
        body = {"data": MATRIX, "indices": int64([1, 2], [1, 1])}
        assert ask(client, body, "auto").json()["device"] == "gpu"
        for _ in range(3):
            answer = ask(client, body, "auto")
            assert values(answer).tolist() == [3.0]
            assert answer.json()["device"] == "cpu"
        refused = ask(client, body, "gpu").json()
        assert refused["code"] == "device_unavailable"
        assert "the GPU failed" in refused["detail"]
        assert server.log_text().count("the GPU failed and will not be used") == 1


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--device", "cpu"), "uses no GPU"),
        pytest.param(("--workers", "2"), "several workers", marks=pytest.mark.slow),
    ],
)
def test_a_service_that_may_use_no_gpu_refuses_alike_and_says_why(
    flags: tuple[str, ...], reason: str, start: Start
) -> None:
    with start(*flags) as server:
        for _ in range(10):
            with server.client() as client:
                refused = ask(client, {"data": MATRIX, "indices": int64([1, 2], [1, 1])}, "gpu").json()
            assert refused["code"] == "device_unavailable"
            assert reason in refused["detail"]


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")
def test_a_service_that_is_to_use_a_gpu_does_not_start_without_one(warmed: Path, tmp_path: Path) -> None:
    command = [GATHERND, "serve", "--port", "0", "--device", "gpu", "--cache-dir", str(warmed)]
    command += ["--store-dir", str(tmp_path / "store")]
    done = run_program(command, timeout=120)
    assert done.returncode == 3
    assert "GATHERND_DEVICE=gpu needs a GPU: this service has no GPU: CuPy is not installed" in done.stderr

"""The endpoints beside infer, over plain HTTP."""

from __future__ import annotations

import signal
from time import monotonic

import httpx
import pytest

from tests.http.conftest import Start
from tests.http.server import TWO_WORKERS
from tests.oip.bodies import NUMPY, check_answer, example, refused


def test_health_of_a_server_that_stops(start: Start) -> None:
    with (
        start("--drain-delay", "600") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        assert client.get("/v2/health/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        for path in ("/v2/health/ready", "/v2/models/gathernd/ready"):
            answer = client.get(path)
            end = monotonic() + 60
            while answer.status_code == 200 and monotonic() < end:
                answer = client.get(path)
            check_answer(answer)
            assert refused(answer, "not_ready")["status"] == 503
        assert client.get("/v2/health/live").status_code == 200
        states = [entry["state"] for entry in client.post("/v2/repository/index").json()]
        assert set(states) == {"UNAVAILABLE"}
        assert client.post("/v2/repository/index", json={"ready": True}).json() == []
        assert client.post("/v2/models/gathernd/infer", json=example()).status_code == 200
        server.process.send_signal(signal.SIGTERM)  # ends the delay


@pytest.mark.parametrize(
    ("name", "dims"),
    [("gathernd", [-1, -1]), ("scatternd", [-1, -1]), ("gather", [-1]), ("gather_elements", [-1])],
)
def test_indices_that_are_tuples_are_described_as_rows_of_them(
    client: httpx.Client, name: str, dims: list[int]
) -> None:
    described = {one["name"]: one for one in client.get(f"/v2/models/{name}").json()["inputs"]}
    assert described["indices"]["shape"] == dims
    configured = {one["name"]: one for one in client.get(f"/v2/models/{name}/config").json()["input"]}
    assert configured["indices"]["dims"] == dims


def test_metadata_names_one_documented_datatype_and_lists_those_taken(client: httpx.Client) -> None:
    data, indices = client.get("/v2/models/gathernd").json()["inputs"]
    assert (data["datatype"], data["shape"], data["parameters"]) == ("FP32", [-1], {"datatypes": list(NUMPY)})
    assert (indices["datatype"], indices["shape"]) == ("INT64", [-1, -1])
    assert indices["parameters"]["datatypes"] == [name for name in NUMPY if "INT" in name]
    schema = client.get("/openapi.json").json()["components"]["schemas"]["TensorMetadata"]
    assert "`FP32` stands for" in schema["description"]


def test_errors_below_http_are_in_the_protocols_form(client: httpx.Client) -> None:
    answer = client.post("/v2/models/gathernd/infer", headers={"x-long": "x" * 70_000})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]
    assert answer.status_code == 431


@pytest.mark.slow
def test_statistics_are_summed_over_workers(start: Start) -> None:
    with start(*TWO_WORKERS) as server:
        answered = refusals = 0
        while answered < 20:
            # A new connection each time, so that both workers answer some; one of them may still be starting.
            with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
                answered += client.post("/v2/models/gathernd/infer", json=example()).status_code == 200
                refusals += client.post("/v2/models/gathernd/infer", json={}).status_code == 422
        for _ in range(6):
            with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
                (found,) = client.get("/v2/models/gathernd/stats").json()["model_stats"]
            assert found["inference_count"] == answered
            assert found["inference_stats"]["fail"]["count"] == refusals
            assert found["last_inference"] > 1.6e12

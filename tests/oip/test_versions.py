"""Versions of tensors and aliases as models: versions in paths, metadata, statistics, and the repository's index."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.oip.bodies import check_answer, output, part, refused, request

RAW = {"content-type": "application/octet-stream"}
PICK = np.array([[1], [0]], np.int64)


@pytest.fixture(scope="module")
def _keeping(start: Start) -> Iterator[httpx.Client]:
    hooks: dict[str, list[Any]] = {"response": [check_answer]}
    with (
        start("--keep-versions", "2", "--device", "cpu") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60, event_hooks=hooks) as made,
    ):
        for number in (1, 2, 3):
            put(made, number)
        yield made


@pytest.fixture
def client(_keeping: httpx.Client) -> httpx.Client:
    """A client of a server with versions 2 and 3 of `items`, each full of its number, and the alias `live` of 2."""
    _keeping.put("/aliases/live", json={"tensor": "items@2"})
    return _keeping


def put(client: httpx.Client, number: int) -> None:
    file = io.BytesIO()
    np.save(file, np.full((2, 2), number, np.float32))
    assert client.put("/tensors/items", content=file.getvalue()).status_code in (200, 201)


def infer(client: httpx.Client, path: str, *, binary: bool = False) -> httpx.Response:
    indices = part("indices", PICK, "INT64", binary=binary)
    content, headers = request([indices], parameters={"binary_data_output": binary})
    return client.post(f"/v2/models/{path}/infer", content=content, headers=headers)


WAYS = {
    "items": ("items", 3),
    "items/versions/2": ("items", 2),
    "items/versions/3": ("items", 3),
    "items@2": ("items@2", 2),
    "items@2/versions/2": ("items@2", 2),
    "live": ("live", 2),
    "live/versions/2": ("live", 2),
}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("path", WAYS)
def test_infer_reads_the_version_in_the_path_and_says_which(client: httpx.Client, path: str, binary: bool) -> None:
    name, number = WAYS[path]
    answer = infer(client, path, binary=binary)
    body, found = output(answer)
    assert (body["model_name"], body["model_version"]) == (name, str(number))
    assert found.tolist() == [[number] * 2] * 2
    assert answer.headers["x-gathernd-data-version"] == str(number)


@pytest.mark.parametrize(
    "path",
    [
        "items/versions/1", "items/versions/4", "items/versions/02", "items/versions/+2", "items/versions/2.0",
        "items/versions/x", "live/versions/3", "live/versions/1", "items@2/versions/3", "items@1", "items@x", "live@2",
        "items/versions/" + "9" * 30,
    ],
)  # fmt: skip
def test_other_versions_are_not_there(client: httpx.Client, path: str) -> None:
    assert refused(infer(client, path), "model_not_found")["hint"]
    refused(client.get(f"/v2/models/{path}"), "model_not_found")
    refused(client.get(f"/v2/models/{path}/ready"), "model_not_found")
    refused(client.get(f"/v2/models/{path}/stats"), "model_not_found")


def test_metadata_lists_the_versions_that_are_kept(client: httpx.Client) -> None:
    for path, versions in (
        ("items", ["2", "3"]),
        ("items/versions/2", ["2", "3"]),
        ("items@2", ["2"]),
        ("live", ["2"]),
        ("gathernd", ["1"]),
        ("lookup", ["1"]),
    ):
        assert client.get(f"/v2/models/{path}").json()["versions"] == versions
        assert client.get(f"/v2/models/{path}/ready").status_code == 200


def test_a_moved_alias_is_another_version_of_its_model_at_once(client: httpx.Client) -> None:
    for number in (3, 2, 3):
        client.put("/aliases/live", json={"tensor": f"items@{number}"})
        assert output(infer(client, "live"))[0]["model_version"] == str(number)
        assert client.get("/v2/models/live").json()["versions"] == [str(number)]
        refused(infer(client, f"live/versions/{5 - number}"), "model_not_found")
        assert output(infer(client, f"live/versions/{number}"))[1][0, 0] == number


def test_the_index_has_every_version_of_every_model(client: httpx.Client) -> None:
    index = {(one["name"], one["version"]) for one in client.post("/v2/repository/index").json()}
    assert {("items", "2"), ("items", "3"), ("live", "2"), ("gathernd", "1"), ("lookup", "1")} <= index
    assert len([name for name, _ in index if name in ("items", "live")]) == 3
    assert client.post("/v2/repository/models/live/load").status_code == 200
    put_complex = client.put(
        "/tensors/waves", params={"dtype": "complex64", "shape": "1"}, content=bytes(8), headers=RAW
    )
    assert put_complex.status_code in (200, 201)
    client.put("/tensors/waves", params={"dtype": "float32", "shape": "1"}, content=bytes(4), headers=RAW)
    states = {
        one["version"]: one["state"] for one in client.post("/v2/repository/index").json() if one["name"] == "waves"
    }
    assert list(states.values()) == ["UNAVAILABLE", "READY"]
    client.delete("/tensors/waves")


def test_statistics_are_those_of_each_version(client: httpx.Client) -> None:
    def counts(path: str) -> dict[str, tuple[int, int]]:
        return {
            one["version"]: (one["inference_count"], one["inference_stats"]["fail"]["count"])
            for one in client.get(f"/v2/models/{path}/stats").json()["model_stats"]
        }

    before, alias = counts("items"), counts("live")
    assert set(before) == {"2", "3"}
    infer(client, "items")
    infer(client, "items/versions/2")
    infer(client, "items/versions/2")
    infer(client, "live")
    refused(client.post("/v2/models/items/versions/2/infer", json={"inputs": []}), "invalid_field", "/inputs")
    after = counts("items")
    assert (after["3"][0] - before["3"][0], after["3"][1] - before["3"][1]) == (1, 0)
    assert after["2"][0] - before["2"][0] == 2
    assert counts("items/versions/3") == {"3": after["3"]}
    assert counts("live")["2"][0] - alias["2"][0] == 1
    client.put("/aliases/other", json={"tensor": "items@3"})
    every = [(one["name"], one["version"]) for one in client.get("/v2/models/stats").json()["model_stats"]]
    # The newest version of each model, and of others those that were called.
    assert {("items", "2"), ("items", "3"), ("live", "2"), ("other", "3"), ("gathernd", "1")} <= set(every)
    assert len(every) == len(set(every))
    client.delete("/aliases/other")


def test_a_version_that_goes_is_no_model_any_more(client: httpx.Client) -> None:
    put(client, 4)
    client.put("/aliases/live", json={"tensor": "items@4"})
    assert output(infer(client, "items/versions/3"))[1][0, 0] == 3
    put(client, 5)
    refused(infer(client, "items/versions/3"), "model_not_found")
    assert output(infer(client, "items/versions/4"))[1][0, 0] == 4
    assert client.delete("/aliases/live").status_code == 204
    refused(infer(client, "live"), "model_not_found")

"""Versions of tensors over HTTP: every route that takes a name takes `NAME@7` and an alias, and says what it read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import RAW, SAFETENSORS, error, look_up, put_raw, save, scatter_body

ROWS = 4
FIRST: dict[str, int] = {}
"""The number of the first version that a test has made."""


def table(number: int) -> Any:
    return np.full((ROWS, 2), number, np.float32)


@pytest.fixture(scope="module")
def keeping(start: Start) -> Iterator[Server]:
    """A server that keeps three versions."""
    with start("--keep-versions", "3", "--device", "cpu") as server:
        yield server


@pytest.fixture
def client(keeping: Server) -> httpx.Client:
    """Its client, with versions 1 to 3 of `items`, each full of its number, and the alias `live` of version 2."""
    client = keeping.shared_client()
    for alias in client.get("/aliases").json()["aliases"]:
        client.delete(f"/aliases/{alias['alias']}")
    for found in client.get("/tensors").json()["tensors"]:
        client.delete(f"/tensors/{found['name']}")
    first = put_raw(client, "items", table(1)).json()["version"]
    for number in (2, 3):
        put_raw(client, "items", table(number))
    FIRST["items"] = first
    client.put("/aliases/live", json={"tensor": f"items@{first + 1}"})
    return client


def of(number: int) -> int:
    """The number that the version full of `number` has: those of earlier tests are not given again."""
    return FIRST["items"] + number - 1


def ways() -> dict[str, int]:
    """Every way to name one of the versions, and what it is full of."""
    return {"items": 3, "live": 2, **{f"items@{of(number)}": number for number in (1, 2, 3)}}


def test_metadata_and_lists_have_the_version_and_those_that_are_kept(client: httpx.Client) -> None:
    kept = [of(number) for number in (1, 2, 3)]
    for name, number in ways().items():
        answer = client.get(f"/tensors/{name}")
        found = answer.json()
        assert (found["name"], found["version"], found["versions"]) == ("items", of(number), kept)
        assert answer.headers["x-gathernd-data-version"] == str(found["version"])
        assert client.head(f"/tensors/{name}").headers["etag"] == found["etag"] == answer.headers["etag"]
        assert client.get(f"/tensors/{name}", headers={"if-none-match": found["etag"]}).status_code == 304
    (listed,) = client.get("/tensors").json()["tensors"]
    assert listed == client.get("/tensors/items").json()


def test_a_gather_reads_the_version_that_it_names_and_says_which(client: httpx.Client) -> None:
    for name, number in ways().items():
        etag = client.get(f"/tensors/{name}").json()["etag"]
        found = look_up(client, name, [0, 3]).json()
        assert found["output"]["values"] == [number] * 4
        assert (found["data_etag"], found["version"]) == (etag, of(number))
        binary = client.post(
            "/gathernd", params={"tensor": name}, content=save(indices=np.array([[1]])),
            headers={"content-type": SAFETENSORS},
        )  # fmt: skip
        assert safetensors.numpy.load(binary.content)["output"].tolist() == [[number, number]]
        assert binary.headers["x-gathernd-data-version"] == str(of(number))
        assert binary.headers["x-gathernd-data-etag"] == etag


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/gather", {"indices": int64([1], [1])}),
        ("/gather_elements", {"indices": int64([1, 2], [1, 0])}),
        ("/gathernd", {"indices": int64([1, 1], [9]), "out_of_bounds": "clip"}),
        ("/gathernd", {"indices": int64([1, 1], [9]), "out_of_bounds": "fill", "fill_value": 5}),
        ("/scatternd", {"indices": int64([0, 1], []), "updates": {"dtype": "float32", "shape": [0, 2], "values": []}}),
        (
            "/scatter_elements",
            {"indices": int64([0, 2], []), "updates": {"dtype": "float32", "shape": [0, 2], "values": []}},
        ),
    ],
)
def test_every_operator_takes_every_name(client: httpx.Client, path: str, more: dict[str, Any]) -> None:
    for name, number in ways().items():
        found = client.post(path, json={"data": {"tensor": name}, **more}).json()
        expected = 5 if more.get("out_of_bounds") == "fill" else number
        assert set(found["output"]["values"]) == {expected}, found
        assert found["version"] == of(number)
        explained = client.post(f"{path}?explain=true", json={"data": {"tensor": name}, **more}).json()
        assert (explained["version"], explained["data_etag"]) == (of(number), found["data_etag"])


def test_a_lookup_says_of_each_feature_which_version_it_read(client: httpx.Client) -> None:
    names = ways()
    features = [{"tensor": name, "indices": int64([2], [0, 1])} for name in names]
    found = client.post("/lookup", json={"features": features}).json()
    assert found["output"]["values"] == [value for number in names.values() for value in (number, number)] * 2
    assert [(one["tensor"], one["version"]) for one in found["features"]] == [
        (name, of(number)) for name, number in names.items()
    ]
    metadata = json.dumps({"features": [{"tensor": name} for name in names]})
    arrays = {f"{number}.indices": np.array([0]) for number in range(len(names))}
    body = safetensors.numpy.save(arrays, metadata={"lookup": metadata})
    answer = client.post("/lookup", content=body, headers={"content-type": SAFETENSORS})
    size = int.from_bytes(answer.content[:8], "little")
    told = json.loads(json.loads(answer.content[8 : 8 + size])["__metadata__"]["lookup"])
    assert told["features"] == found["features"]
    explained = client.post("/lookup?explain=true", json={"features": features}).json()
    assert explained["features"] == found["features"]


def test_a_gradient_takes_the_shape_of_the_version_that_it_names(client: httpx.Client) -> None:
    put_raw(client, "items", np.zeros((2, 2), np.float32))
    for name, rows in (("items", 2), ("live", ROWS), (f"items@{of(3)}", ROWS)):
        body = {
            "indices": int64([1], [1]),
            "grad_output": {"dtype": "float32", "shape": [1, 2], "values": [1, 2]},
            "tensor": name,
        }
        found = client.post("/gather/backward", json=body).json()
        assert found["grad_data"]["shape"] == [rows, 2], found


def test_a_scatter_changes_the_version_that_it_names_and_keeps_its_number(client: httpx.Client) -> None:
    for name, number in {**ways(), "live": 2}.items():
        before = client.get(f"/tensors/{name}").json()
        answer = client.post(f"/tensors/{name}/scatter", json=scatter_body([[0]], np.full((1, 2), 9, np.float32)))
        found = answer.json()
        assert set(found) == {"name", "etag"}
        assert found["name"] == name
        assert answer.headers["x-gathernd-data-version"] == str(of(number))
        assert found["etag"] == answer.headers["etag"] != before["etag"]
        assert found["etag"].partition("-")[0] == before["etag"].partition("-")[0]
        after = client.get(f"/tensors/items@{of(number)}").json()
        assert (after["etag"], after["version"], after["sha256"]) == (
            found["etag"],
            before["version"],
            before["sha256"],
        )
    assert [look_up(client, "items", [row]).json()["output"]["values"][0] for row in (0, 1)] == [9, 3]


def test_a_download_is_of_the_version_that_it_names(client: httpx.Client) -> None:
    for name, number in ways().items():
        answer = client.get(f"/tensors/{name}/content")
        assert np.frombuffer(answer.content, np.float32).tolist() == [number] * 2 * ROWS
        assert answer.headers["x-gathernd-data-version"] == str(of(number))
        assert client.head(f"/tensors/{name}/content").headers["x-gathernd-data-version"] == str(of(number))


def test_keep_in_the_query_wins_over_the_setting(client: httpx.Client) -> None:
    put = {"dtype": "int8", "shape": "1"}
    for keep, left in (("4", 4), (None, 3), ("2", 2), ("1", 1)):
        query = put | ({} if keep is None else {"keep": keep})
        for _ in range(4):
            answer = client.put("/tensors/other", params=query, content=b"1", headers={"content-type": RAW})
        found = answer.json()
        assert (len(found["versions"]), found["versions"][-1]) == (left, found["version"])
        assert answer.headers["x-gathernd-data-version"] == str(found["version"])


@pytest.mark.parametrize("keep", ["0", "-1", "1.5", "", "10001", "all", "9999999999"])
def test_keep_is_a_number_of_versions(client: httpx.Client, keep: str) -> None:
    answer = client.put("/tensors/other", params={"keep": keep, "dtype": "int8", "shape": "1"}, content=b"1")
    assert "1 to 10000" in error(answer, 422, "invalid_field", "/query/keep")["hint"]


def test_a_put_answers_201_for_a_new_name_and_200_for_its_next_versions(client: httpx.Client) -> None:
    assert put_raw(client, "fresh", table(1)).status_code == 201
    assert put_raw(client, "fresh", table(2)).status_code == 200
    client.delete("/tensors/fresh@1")
    client.delete("/tensors/fresh")
    answer = put_raw(client, "fresh", table(3))
    assert (answer.status_code, answer.json()["version"]) == (201, 3)


def test_a_version_is_removed_alone_and_a_name_with_all_of_them(client: httpx.Client) -> None:
    error(client.delete("/tensors/items"), 409, "tensor_in_use", "/name")
    found = error(client.delete(f"/tensors/items@{of(2)}"), 409, "tensor_in_use", "/name")
    assert "/aliases/live" in found["hint"]
    etag = client.get("/tensors/items").json()["etag"]
    wrong = client.delete(f"/tensors/items@{of(1)}", headers={"if-match": etag})
    error(wrong, 412, "precondition_failed")
    assert client.delete(f"/tensors/items@{of(3)}", headers={"if-match": etag}).status_code == 204
    assert look_up(client, "items", [0]).json()["output"]["values"] == [2, 2]
    assert client.delete("/aliases/live").status_code == 204
    assert client.delete("/tensors/items").status_code == 204
    for name in ("items", "live", f"items@{of(1)}"):
        error(client.get(f"/tensors/{name}"), 404, "tensor_not_found", "/name")


def test_put_takes_no_number_and_its_conditions_mean_the_current_version(client: httpx.Client) -> None:
    assert "'items'" in error(put_raw(client, "items@9", table(0)), 422, "invalid_field", "/name")["hint"]
    current = client.get("/tensors/items").json()["etag"]
    older = client.get("/tensors/live").json()["etag"]
    error(put_raw(client, "items", table(0), **{"if-match": older}), 412, "precondition_failed")
    error(put_raw(client, "items", table(0), **{"if-none-match": "*"}), 412, "precondition_failed")
    assert put_raw(client, "items", table(4), **{"if-match": current}).status_code == 200
    assert look_up(client, "live", [0]).json()["output"]["values"] == [2, 2]


@pytest.mark.parametrize("name", ["items@0", "items@x", "items@", "items@1@2", "items@" + "1" * 20])
def test_what_is_no_number_of_a_version_is_refused_in_path_body_and_query(client: httpx.Client, name: str) -> None:
    for path in (f"/tensors/{name}", f"/tensors/{name}/content"):
        assert error(client.get(path), 422, "invalid_field", "/name")["hint"]
    found = error(look_up(client, name, [0]), 422, "invalid_field", "/data/tensor")
    assert "'items'" in found["hint"]
    answer = client.post(
        "/gathernd", params={"tensor": name}, content=save(indices=np.array([[1]])),
        headers={"content-type": SAFETENSORS},
    )  # fmt: skip
    error(answer, 422, "invalid_field", "/query/tensor")
    features = {"features": [{"tensor": name, "indices": int64([1], [0])}]}
    error(client.post("/lookup", json=features), 422, "invalid_field", "/features/0/tensor")


def test_a_version_that_is_not_kept_is_not_found_and_the_hint_has_one_that_is(client: httpx.Client) -> None:
    current = f"'items@{of(3)}'"
    for name in ("items@9999", "items@" + "9" * 19):
        assert current in error(client.get(f"/tensors/{name}"), 404, "tensor_not_found", "/name")["hint"]
        assert current in error(look_up(client, name, [0]), 404, "tensor_not_found", "/data/tensor")["hint"]
        features = {"features": [{"tensor": name, "indices": int64([1], [0])}]}
        error(client.post("/lookup", json=features), 404, "tensor_not_found", "/features/0/tensor")
    error(look_up(client, "live@1", [0]), 404, "tensor_not_found", "/data/tensor")
    assert "'live'" in error(look_up(client, "liev", [0]), 404, "tensor_not_found", "/data/tensor")["hint"]


def test_a_scatter_that_comes_again_through_its_name_is_answered_again_after_the_next_upload(
    client: httpx.Client,
) -> None:
    body = scatter_body([[0]], np.full((1, 2), 1, np.float32), "add")
    given = {
        name: client.post(f"/tensors/{name}/scatter", json=body, headers={"idempotency-key": "k"})
        for name in ("items", "live", f"items@{of(2)}")
    }
    put_raw(client, "items", table(4))
    client.put("/aliases/live", json={"tensor": f"items@{of(4)}"})
    for name, answer in given.items():
        again = client.post(f"/tensors/{name}/scatter", json=body, headers={"idempotency-key": "k"})
        assert again.json() == answer.json()
        assert again.headers["x-gathernd-data-version"] == answer.headers["x-gathernd-data-version"]
    assert look_up(client, "items", [0]).json()["output"]["values"] == [4, 4]
    assert look_up(client, f"items@{of(2)}", [0]).json()["output"]["values"] == [4, 4]  # 2, and 1 twice


def counted_lookups(client: httpx.Client) -> dict[str, float]:
    """The lookups counted so far, by label."""
    found = re.findall(r'gathernd_tensor_lookups_total\{tensor="(.*?)"\} (\S+)', client.get("/metrics").text)
    return {name: float(count) for name, count in found}


def test_metrics_count_versions_and_label_lookups_by_the_name_without_a_number(client: httpx.Client) -> None:
    for name in ("items", f"items@{of(1)}", "live"):
        look_up(client, name, [0])
    before = counted_lookups(client)
    features = [
        {"tensor": name, "indices": {"dtype": "int64", "shape": [1], "values": [0]}}
        for name in ("items", f"items@{of(1)}", "live")
    ]
    assert client.post("/lookup", json={"features": features}).status_code == 200
    look_up(client, "live", [0])
    after = counted_lookups(client)
    # An operator sees who asks for what: an alias under its own name, a version under its tensor's.
    counted = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert counted == {"items": 2, "live": 2}
    text = client.get("/metrics").text
    assert "gathernd_resident_tensors 1.0" in text
    assert "gathernd_resident_versions 3.0" in text
    assert "gathernd_aliases 1.0" in text
    assert 'gathernd_tensor_lookups_total{tensor="items"}' in text
    assert 'gathernd_tensor_lookups_total{tensor="live"}' in text
    assert "items@" not in text


def noted(client: httpx.Client, name: str, note: str) -> httpx.Response:
    query = {"dtype": "int8", "shape": "1", "note": note}
    return client.put(f"/tensors/{name}", params=query, content=b"1", headers={"content-type": RAW})


def test_a_version_has_the_note_that_its_upload_gave(client: httpx.Client) -> None:
    note = 'run 7 of naïve-bayes, commit 9f31c02 & "author" 名前'
    made = noted(client, "noted", note)
    assert made.json()["note"] == note
    version = made.json()["version"]
    after = put_raw(client, "noted", np.zeros(1, np.int8))
    assert "note" not in after.json()
    assert client.get(f"/tensors/noted@{version}").json()["note"] == note
    assert noted(client, "noted", "").status_code == 200
    assert "note" not in client.get("/tensors/noted").json()
    longest = noted(client, "noted", "é" * 512)
    assert [one.get("note") for one in client.get("/tensors").json()["tensors"]] == [None, "é" * 512]
    client.put("/aliases/live", json={"tensor": f"noted@{longest.json()['version']}"})
    assert client.get("/tensors/live").json()["note"] == "é" * 512
    assert client.post("/tensors/live/scatter", json=scatter_body([[0]], np.ones(1, np.int8))).status_code == 200
    assert client.get("/tensors/live").json()["note"] == "é" * 512


@pytest.mark.parametrize(
    ("note", "hint"),
    [("é" * 512 + "x", "1024"), ("a\nb", "one line"), ("a\tb", "one line"), ("\x7f", "one line"), ("\x85", "one line")],
)
def test_a_note_is_short_and_of_one_line(client: httpx.Client, note: str, hint: str) -> None:
    assert hint in error(noted(client, "noted", note), 422, "invalid_field", "/query/note")["hint"]

"""Each typical mistake gets a code, a place, and a hint that names what mends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.errors.catalogue import CATALOGUE
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.mistakes import (
    BINARY,
    ITEMS,
    JSON,
    KEYS,
    MAX_JSON,
    MISTAKES,
    TEXT,
    V2,
    V2_DATA,
    V2_INDICES,
    Mistake,
    Request,
    infer,
    one,
)  # fmt: skip
from tests.http.operator_mistakes import OPERATOR_MISTAKES
from tests.http.provoked import body
from tests.http.server import check_hint
from tests.http.tensors import RAW, SAFETENSORS, put_raw, save


@pytest.fixture(scope="module")
def client(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service with two keys and two tensors, that takes short JSON only."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    scopes = {"gather": "gather", "tensors": "gather,tensors", "change": "tensors"}
    keys.write_text("".join(f"{sha256(key.encode()).hexdigest()} {scopes[of]} {of}\n" for of, key in KEYS.items()))
    keys.chmod(0o600)
    with start("--api-keys-file", str(keys), "--max-json-bytes", str(MAX_JSON)) as server:
        bearer = {"authorization": f"Bearer {KEYS['tensors']}"}
        with httpx.Client(base_url=server.url, trust_env=False, headers=bearer, timeout=60) as made:
            for name, array in (("items", ITEMS), ("other", np.arange(2, dtype=np.int8))):
                assert put_raw(made, name, array).status_code == 201
            yield made


def send(client: httpx.Client, request: Request) -> httpx.Response:
    return client.request(request.method, request.path, content=request.body, headers=dict(request.headers))


ALL = [*MISTAKES, *OPERATOR_MISTAKES]


@for_each("mistake", ALL)
def test_a_mistake_is_told_what_mends_it(mistake: Mistake, client: httpx.Client) -> None:
    answer = send(client, mistake.request)
    found = answer.json()
    assert (found["code"], answer.status_code) == (mistake.code, CATALOGUE[mistake.code].status), found  # type: ignore[index]
    places = [place["pointer"] for place in found.get("errors", ())]
    assert places[:1] == ([] if mistake.pointer is None else [mistake.pointer]), found
    assert not re.search(r"\w\(\w+=", found["detail"]), "an object of Python is no sentence"
    hint = found["hint"]
    check_hint(hint)
    assert mistake.mend in hint


def test_there_are_mistakes_of_all_kinds() -> None:
    assert len(ALL) >= 130
    assert len({mistake.code for mistake in ALL}) >= 25


LONG = "x" * 3000
QUOTING = [
    Request("POST", "/gathernd", json.dumps(body({LONG: 1})).encode(), JSON),
    Request("POST", "/gathernd", json.dumps(body(**{LONG: 1})).encode(), JSON),
    Request("POST", "/gathernd", json.dumps(one(dtype=LONG)).encode(), JSON),
    Request("POST", "/gathernd", json.dumps(one(values=[1, LONG])).encode(), JSON),
    Request("POST", "/gathernd", json.dumps(one(values=[1, "nan" + " " * 500])).encode(), JSON),
    Request("POST", "/gathernd", json.dumps(one(shape=None, values=json.loads("[" * 400 + "1" + "]" * 399 + ",[]]"))
                                            ).encode().replace(b'"shape": null, ', b""), JSON),
    Request("POST", "/gathernd", json.dumps(body({"tensor": LONG})).encode(), JSON),
    Request("POST", "/gathernd", json.dumps(body(dialect=LONG)).encode(), JSON),
    Request("POST", "/gathernd", b'{"' + LONG.encode() + b'": 1, "' + LONG[:900].encode() + b'"', JSON),
    Request("POST", f"/gathernd?{LONG}=1", b"{}", JSON),
    Request("POST", f"/gathernd?{LONG}=1", BINARY, {"content-type": SAFETENSORS}),
    Request("POST", "/gathernd", save(**{LONG: ITEMS}), {"content-type": SAFETENSORS}),
    Request("POST", f"/{LONG}", b"{}", JSON),
    Request("GET", f"/tensors/{LONG}"),
    Request("GET", f"/v2/models/{LONG}"),
    Request("PUT", f"/tensors/x?dtype={LONG}&shape=1", b"1", {"content-type": RAW}),
    Request("PUT", "/tensors/x", b"1", {"content-type": LONG}),
    Request("POST", V2, json.dumps(infer({**V2_DATA, "name": LONG})).encode(), JSON),
    Request("POST", V2, json.dumps(infer({**V2_DATA, "datatype": LONG}, V2_INDICES)).encode(), JSON),
    Request("POST", "/gathernd", TEXT.encode(), {**JSON, "x-gathernd-timeout": "9" * 3000}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(QUOTING)))
def test_a_hint_stays_short_whatever_it_quotes(number: int, client: httpx.Client) -> None:
    answer = send(client, QUOTING[number])
    assert 400 <= answer.status_code < 500, answer.text[:1000]
    check_hint(answer.json()["hint"])


@pytest.mark.parametrize("route", ["/tensors/itmes", "/tensors/itmes/content", "/v2/models/itmes"])
def test_a_key_that_may_look_up_is_told_near_names(route: str, client: httpx.Client) -> None:
    answer = client.get(route, headers={"authorization": f"Bearer {KEYS['gather']}"})
    assert answer.json()["code"] in ("tensor_not_found", "model_not_found")
    assert ("'items'" in answer.json()["hint"]) is ("content" not in route)


def test_a_key_that_may_only_change_tensors_is_told_no_names(client: httpx.Client) -> None:
    answer = client.delete("/tensors/itmes", headers={"authorization": f"Bearer {KEYS['change']}"})
    assert answer.json()["code"] == "tensor_not_found"
    assert "items" not in answer.json()["hint"]

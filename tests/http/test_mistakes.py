"""Hints that name what mends a request: of keys and limits, and of long texts. The golden corpus has the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.server import check_hint
from tests.http.tensors import npy, put_raw

MAX_JSON = 4096
"""Bytes of JSON that the service takes."""
JSON = {"content-type": "application/json"}
ITEMS = np.arange(12, dtype=np.float32).reshape(4, 3)
DATA, INDICES = tensor("float32", [2], [1, 2]), int64([1, 1], [0])
TEXT = json.dumps({"data": DATA, "indices": INDICES}).encode()
KEYS = {"gather": "key-to-gather", "tensors": "key-for-all", "change": "key-to-change"}
"""The service's keys, by the scope that a hint asks for; the last has `tensors` alone."""


@dataclass(frozen=True)
class Request:
    """A request; header fields are in lower case."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def gather(data: Any = DATA, **more: Any) -> Request:
    """A gather of item 0, as JSON."""
    return Request("POST", "/gathernd", json.dumps({"data": data, "indices": INDICES, **more}).encode(), JSON)


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


OTHER_MISTAKES = (
    ("unauthorized", "Authorization", Request("POST", "/gathernd", TEXT, {**JSON, "authorization": ""})),
    ("forbidden", "tensors", Request("PUT", "/tensors/a", npy(ITEMS), {"authorization": f"Bearer {KEYS['gather']}"})),
    ("payload_too_large", "GATHERND_MAX_JSON_BYTES", Request("POST", "/gathernd", TEXT.ljust(MAX_JSON + 1), JSON)),
)


@pytest.mark.parametrize(
    ("code", "mend", "request_"), OTHER_MISTAKES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_mistake_is_told_what_mends_it(code: str, mend: str, request_: Request, client: httpx.Client) -> None:
    """Those that the golden corpus cannot ask."""
    found = send(client, request_).json()
    assert found["code"] == code
    check_hint(found["hint"])
    assert mend in found["hint"]


@pytest.mark.parametrize("route", ["/tensors/itmes", "/tensors/itmes/content", "/v2/models/itmes"])
def test_a_key_that_may_look_up_is_told_near_names(route: str, client: httpx.Client) -> None:
    answer = client.get(route, headers={"authorization": f"Bearer {KEYS['gather']}"})
    assert answer.json()["code"] in ("tensor_not_found", "model_not_found")
    assert ("'items'" in answer.json()["hint"]) is ("content" not in route)


def test_a_key_that_may_only_change_tensors_is_told_no_names(client: httpx.Client) -> None:
    answer = client.delete("/tensors/itmes", headers={"authorization": f"Bearer {KEYS['change']}"})
    assert answer.json()["code"] == "tensor_not_found"
    assert "items" not in answer.json()["hint"]

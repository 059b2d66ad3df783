"""Mistakes drawn from a seed, in every route and format: the hint of each can be followed, and mends what it speaks of.

`follow` changes a request as its hint says, and knows nothing of the mistake. What it makes succeeds, or has another
error than the ones before, until it succeeds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import sha256

import httpx
import numpy as np
import pytest

from tests.conftest import TEST_ALL
from tests.http import follow_hint_of_forms, follow_operator_hint  # noqa: F401, which register further rules
from tests.http.conftest import Start
from tests.http.follow_hint import KEYS, Request, follow
from tests.http.generated_mistakes import SOUND, mistakes
from tests.http.mistakes import ITEMS
from tests.http.server import check_hint
from tests.http.tensors import RAW, put_raw

SEED = int(os.environ.get("GATHERND_TEST_SEED", "1"))
COUNT = 600 if TEST_ALL else 120
MOST_HINTS = 8
"""Hints that are followed one after the other: a mistake may hide others, and a text may be damaged anew by each."""
LEFT_TO_THE_CALLER = re.compile(
    "^(Leave this part of the protocol out|Send complex(64|128) to POST /gathernd|Have the operator |"
    "Send one JSON object in UTF-8, or the bytes that the Content-Type names|Write the file with |Correct /body )"
)
"""Hints whose request is another one altogether, and those of damaged files."""


@pytest.fixture(scope="module")
def client(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service with a key, which keeps version 1 of a tensor that a mistake replaces."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    scopes = {"gather": "gather", "tensors": "gather,tensors", "change": "tensors"}
    keys.write_text("".join(f"{sha256(key.encode()).hexdigest()} {scopes[of]} {of}\n" for of, key in KEYS.items()))
    keys.chmod(0o600)
    with start("--api-keys-file", str(keys), "--kernel", "numpy", "--keep-versions", "1000") as server:
        bearer = {"authorization": f"Bearer {KEYS['tensors']}"}
        with httpx.Client(base_url=server.url, trust_env=False, headers=bearer, timeout=60) as made:
            yield made


def restore(client: httpx.Client) -> None:
    """Put the tensors and the alias that sound requests name; the alias keeps version 1 of `items`."""
    for name, array in (("items", ITEMS), ("other", np.arange(2, dtype=np.int8))):
        content = client.get(f"/tensors/{name}/content", headers={"accept": RAW})
        if content.content != array.tobytes() or client.get(f"/tensors/{name}").json()["dtype"] != array.dtype.name:
            assert put_raw(client, name, array).status_code in (200, 201)
    assert client.put("/aliases/live", json={"tensor": "items@1"}).status_code in (200, 201)
    assert put_raw(client, "made", ITEMS).status_code in (200, 201)


def send(client: httpx.Client, request: Request) -> httpx.Response:
    headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    return client.request(request.method, request.path, content=request.body, headers=headers)


def test_sound_requests_succeed(client: httpx.Client) -> None:
    restore(client)
    for request in SOUND:
        assert send(client, request).status_code < 300, request


def follow_all(client: httpx.Client, request: Request) -> bool:
    """Send a request, and those that the hints of its errors make of it: whether the last may have changed the store.

    Raises AssertionError for an error that comes twice, and for a hint that cannot be followed.
    """
    found: list[tuple[str, str]] = []
    for _ in range(MOST_HINTS):
        answer = send(client, request)
        if answer.status_code < 400:
            return answer.request.method in ("PUT", "DELETE") or "/tensors/" in answer.request.url.path
        if answer.headers["content-type"].startswith("text/html"):  # the same error as a page
            request = request.with_header("accept", "application/json")
            continue
        error = answer.json()
        assert answer.status_code < 500 or error["code"] == "not_implemented", error
        hint, place = error["hint"], (error.get("errors") or [{}])[0].get("pointer", "")
        check_hint(hint)
        assert (error["detail"], hint) not in found, f"followed, and refused again: {hint}"
        found.append((error["detail"], hint))
        if LEFT_TO_THE_CALLER.match(hint):
            return False
        request = follow(request, hint, place)
    return False


def test_every_hint_mends_what_it_speaks_of(client: httpx.Client) -> None:
    restore(client)
    failed: dict[str, str] = {}
    for change, request in mistakes(SEED, COUNT):
        changed = False
        try:
            changed = follow_all(client, request)
        except Exception as error:  # noqa: BLE001, which is listed with the others
            kind = re.sub(r"'[^']*'|\d+|/\S+", "_", str(error))
            sent = f"{request.method} {request.path} {dict(request.headers)} {request.body[:400]!r}"
            failed.setdefault(kind, f"{change}: {sent}: {type(error).__name__}: {error}")
        if changed:
            restore(client)
    assert not failed, "\n".join([f"seed {SEED}:", *failed.values()])

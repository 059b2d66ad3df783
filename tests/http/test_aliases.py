"""The routes of aliases: made, moved, listed and removed, with conditions, and every way to get one wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.tensors import error, look_up, put_raw

BODY = {"tensor": "items@1"}


@pytest.fixture(scope="module")
def service(start: Start) -> Iterator[Server]:
    """A server with versions 1 and 2 of `items`."""
    with start("--keep-versions", "2", "--device", "cpu") as server:
        for number in (1, 2):
            put_raw(server.shared_client(), "items", np.full((2, 2), number, np.float32))
        yield server


@pytest.fixture
def client(service: Server) -> Iterator[httpx.Client]:
    """Its client; there are no aliases, and none are left."""
    client = service.shared_client()
    yield client
    for alias in client.get("/aliases").json()["aliases"]:
        assert client.delete(f"/aliases/{alias['alias']}").status_code == 204


def test_an_alias_is_made_moved_and_removed(client: httpx.Client) -> None:
    made = client.put("/aliases/live", json=BODY)
    assert (made.status_code, made.headers["location"]) == (201, "/aliases/live")
    found = made.json()
    assert {name: found[name] for name in ("alias", "tensor", "version")} == {
        "alias": "live", "tensor": "items@1", "version": 1,
    }  # fmt: skip
    assert re.fullmatch('"[0-9a-f]{32}"', found["etag"])
    assert made.headers["etag"] == found["etag"]
    assert found["created"] == found["modified"]
    assert client.get("/aliases/live").json() == found
    again = client.put("/aliases/live", json=BODY)
    assert (again.status_code, again.json()) == (200, found)
    moved = client.put("/aliases/live", json={"tensor": "items@2"})
    assert moved.status_code == 200
    assert "location" not in moved.headers
    assert moved.json()["version"] == 2
    assert moved.json()["etag"] != found["etag"]
    assert look_up(client, "live", [0]).json()["output"]["values"] == [2, 2]
    back = client.put("/aliases/live", json=BODY)
    assert look_up(client, "live", [0]).json()["output"]["values"] == [1, 1]
    assert back.json()["created"] == found["created"] < back.json()["modified"]
    gone = client.delete("/aliases/live")
    assert (gone.status_code, gone.content) == (204, b"")
    error(client.get("/aliases/live"), 404, "tensor_not_found", "/name")
    error(look_up(client, "live", [0]), 404, "tensor_not_found", "/data/tensor")
    error(client.delete("/aliases/live"), 404, "tensor_not_found", "/name")


def test_conditions_hold_for_the_alias_itself(client: httpx.Client) -> None:
    error(client.put("/aliases/live", json=BODY, headers={"if-match": "*"}), 412, "precondition_failed")
    etag = client.put("/aliases/live", json=BODY, headers={"if-none-match": "*"}).headers["etag"]
    content = client.get("/tensors/live").headers["etag"]
    assert content != etag
    for headers in ({"if-match": content}, {"if-none-match": "*"}, {"if-none-match": f'"a", W/{etag}'}):
        found = error(
            client.put("/aliases/live", json={"tensor": "items@2"}, headers=headers), 412, "precondition_failed"
        )
        assert etag in found["hint"]
    error(client.delete("/aliases/live", headers={"if-match": content}), 412, "precondition_failed")
    assert client.get("/aliases/live", headers={"if-none-match": f"W/{etag}"}).status_code == 304
    error(client.get("/aliases/live", headers={"if-match": content}), 412, "precondition_failed")
    moved = client.put("/aliases/live", json={"tensor": "items@2"}, headers={"if-match": f'"x", {etag}'})
    assert moved.status_code == 200
    error(client.put("/aliases/live", json=BODY, headers={"if-match": etag}), 412, "precondition_failed")
    assert client.delete("/aliases/live", headers={"if-match": moved.headers["etag"]}).status_code == 204


def test_they_are_listed_a_page_at_a_time(client: httpx.Client) -> None:
    names = ["a", "b", "c", "d", "e"]
    for name in reversed(names):
        client.put(f"/aliases/{name}", json=BODY)
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/aliases", params={"limit": "2", **after}).json()
        found += [alias["alias"] for alias in page["aliases"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == names
    assert client.get("/aliases").json()["aliases"][0] == client.get("/aliases/a").json()
    error(client.get("/aliases", params={"limit": "0"}), 422, "invalid_field", "/query/limit")
    error(client.get("/aliases", params={"page": "1"}), 422, "invalid_field", "/query/page")
    assert [tensor["name"] for tensor in client.get("/tensors").json()["tensors"]] == ["items"]


def test_tensors_and_aliases_share_their_names(client: httpx.Client) -> None:
    client.put("/aliases/live", json=BODY)
    error(put_raw(client, "live", np.zeros(2)), 409, "name_conflict", "/name")
    error(put_raw(client, "live", np.zeros(2), **{"if-none-match": "*"}), 409, "name_conflict", "/name")
    error(client.delete("/tensors/live"), 409, "name_conflict", "/name")
    error(client.put("/aliases/items", json=BODY), 409, "name_conflict", "/name")
    error(client.delete("/aliases/items"), 409, "name_conflict", "/name")
    assert "/tensors/items" in error(client.get("/aliases/items"), 404, "tensor_not_found", "/name")["hint"]


def test_hints_name_the_version_or_the_place_to_look(client: httpx.Client) -> None:
    client.put("/aliases/live", json=BODY)

    def hint(target: str) -> str:
        found: str = client.put("/aliases/next", json={"tensor": target}).json()["hint"]
        return found

    assert "'items@2'" in hint("items")
    assert "/aliases/live" in hint("live")
    assert "'items@2'" in hint("items@9")
    assert "'live'" in error(client.get("/aliases/liev"), 404, "tensor_not_found", "/name")["hint"]


def test_many_are_made_and_moved_by_one_request(client: httpx.Client) -> None:
    made = client.put("/aliases", json={"aliases": {"next": "items@2", "live": {"tensor": "items@1"}}})
    assert made.status_code == 200, made.text
    assert made.json() == client.get("/aliases").json()
    assert [(one["alias"], one["tensor"]) for one in made.json()["aliases"]] == [
        ("live", "items@1"),
        ("next", "items@2"),
    ]
    etags = {one["alias"]: one["etag"] for one in made.json()["aliases"]}
    moved = client.put(
        "/aliases",
        json={
            "aliases": {
                "live": {"tensor": "items@2", "if_match": etags["live"]},
                "next": {"tensor": "items@2", "if_match": f'"x", {etags["next"]}'},
                "third": {"tensor": "items@1", "if_none_match": "*"},
            }
        },
    )
    assert [one["version"] for one in moved.json()["aliases"]] == [2, 2, 1]
    assert [one["etag"] == etags.get(one["alias"]) for one in moved.json()["aliases"]] == [False, True, False]
    assert client.options("/aliases").headers["allow"] == "GET, PUT, HEAD, OPTIONS"


def many(**aliases: Any) -> bytes:
    return json.dumps({"aliases": aliases}).encode()


@pytest.mark.parametrize(
    ("sent", "status", "code", "pointer"),
    [
        (b"", 400, "malformed_request", None),
        (b'{"aliases": {"a": "items@1", "a": "items@2"}}', 400, "malformed_request", None),
        (b"{}", 422, "invalid_field", "/aliases"),
        (b'{"aliases": {}}', 422, "invalid_field", "/aliases"),
        (b'{"aliases": {"a": "items@1"}, "x": 1}', 422, "invalid_field", "/x"),
        (many(**dict.fromkeys(map("a{}".format, range(257)), "items@1")), 422, "invalid_field", "/aliases"),
        (many(a="items@1", b=7), 422, "invalid_field", "/aliases/b"),
        (many(a="items@1", b={}), 422, "invalid_field", "/aliases/b/tensor"),
        (many(a="items@1", b={"tensor": "items@1", "if": "*"}), 422, "invalid_field", "/aliases/b/if"),
        (many(a="items@1", b={"tensor": "items@1", "if_match": "x"}), 422, "invalid_field", "/aliases/b/if_match"),
        (many(a="items@1", b={"tensor": "items@1", "if_none_match": "\ud800"}), 422, "invalid_field",
         "/aliases/b/if_none_match"),
        (many(a="items@1", **{"b/~": "items@1"}), 422, "invalid_field", "/aliases/b~1~0"),
        (many(a="items@1", **{"\ud800": "items@1"}), 422, "invalid_field", None),
        (many(a="items@1", lookup="items@1"), 422, "invalid_field", "/aliases/lookup"),
        (many(a="items@1", items="items@1"), 409, "name_conflict", "/aliases/items"),
        (many(a="items@1", b="items"), 422, "invalid_field", "/aliases/b"),
        (many(a="items@1", b={"tensor": "items@9"}), 404, "tensor_not_found", "/aliases/b/tensor"),
        (many(a="items@1", b={"tensor": "items@1", "if_match": "*"}), 412, "precondition_failed", "/aliases/b"),
        (many(a="items@1", other={"tensor": "items@1", "if_none_match": "*"}), 412, "precondition_failed",
         "/aliases/other"),
        (many(a="items@1", other={"tensor": "items@1", "if_match": '"x"'}), 412, "precondition_failed",
         "/aliases/other"),
        (b" " * ((256 << 10) + 1), 413, "payload_too_large", None),
    ],
)  # fmt: skip
def test_where_one_of_many_is_refused_its_place_is_told_and_none_is_moved(
    client: httpx.Client, sent: bytes, status: int, code: str, pointer: str | None
) -> None:
    client.put("/aliases/other", json=BODY)
    found = error(client.put("/aliases", content=sent), status, code, pointer)
    assert found["hint"]
    assert [one["alias"] for one in client.get("/aliases").json()["aliases"]] == ["other"]

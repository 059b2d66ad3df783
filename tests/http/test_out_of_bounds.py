"""`out_of_bounds` and `fill_value` beside the conformance table: how a value is written, and limits."""

from __future__ import annotations

from typing import Any

import httpx

from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.tensors import error, put_strings


def asked(client: httpx.Client, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(path, json=body | more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_string_that_is_too_long_is_refused_where_limits_have_their_turn(start: Start) -> None:
    body = {"data": {"dtype": "string", "values": ["a", "b"]}, "indices": int64([1, 1], [7]), "out_of_bounds": "fill"}
    long = {**body, "fill_value": "ééééa"}
    with start("--max-string-bytes", "8") as server, server.client() as client:
        assert asked(client, "/gathernd", body, fill_value="éééé")["output"]["values"] == ["éééé"]
        for more in ({}, {"explain": True}):
            problem = error(client.post("/gathernd", json=long, params=more), 422, "limit_exceeded")
            assert problem["errors"] == [{"pointer": "/fill_value"}]
            assert (problem["limit"], problem["maximum"]) == ("string_bytes", 8)
        deep = {**long, "indices": int64([1, 2], [7, 7])}
        error(client.post("/gathernd", json=deep), 422, "index_depth_out_of_range")
        put_strings(client, "words", ["a", "b"])
        fill = {"out_of_bounds": "fill", "fill_value": "ééééa"}
        lookup = {"features": [{"tensor": "words", "indices": int64([1], [7])}], **fill}
        assert error(client.post("/lookup", json=lookup), 422, "limit_exceeded")["errors"] == [
            {"pointer": "/fill_value"}
        ]

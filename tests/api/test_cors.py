"""What the answers to web pages say; tests/http/test_foreign_callers.py asks over sockets."""

from __future__ import annotations

import json

import pytest

from app.api.cors import READABLE
from app.main import create_app
from app.settings import Settings
from tests.api.asgi import ask
from tests.http.server import ROOT

PAGE = "https://app.example"
FOR_BROWSERS = {"cache-control", "content-encoding", "vary"}
"""What a page may read anyway, or need not, as its browser sees to it."""


def fields(origin: str | None) -> dict[str, str]:
    """The header fields of the answer to a page of `origin` that asks whether the service is alive."""
    sent = () if origin is None else ((b"origin", origin.encode()),)
    return ask(create_app(Settings(cors_origins=(PAGE,))), "GET", "/livez", *sent)[1]


def test_a_page_of_a_named_origin_may_read_the_answer() -> None:
    found = fields(PAGE)
    assert found["access-control-allow-origin"] == PAGE
    assert "X-Request-ID" in found["access-control-expose-headers"]
    assert found["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://other.example", "null", "http://localhost:3000"])
def test_no_other_page_may(origin: str) -> None:
    found = fields(origin)
    assert "access-control-allow-origin" not in found
    assert found["vary"] == "Origin"


def test_an_answer_to_no_page_tells_caches_that_another_is_for_one() -> None:
    found = fields(None)
    assert found["vary"] == "Origin"
    assert not [name for name in found if name.startswith("access-control")]


def test_a_page_may_read_every_field_that_openapi_names() -> None:
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())["paths"]
    answers = [answer for item in paths.values() for each in item.values() for answer in each["responses"].values()]
    named = {name for answer in answers for name in answer.get("headers", {})}
    assert "X-Gathernd-Shape" in named
    assert {name.lower() for name in named} <= {name.lower() for name in READABLE} | FOR_BROWSERS

"""What the answers to web pages say; tests/http/test_foreign_callers.py asks over sockets."""

from __future__ import annotations

import json

from app.api.cors import READABLE
from tests.http.server import ROOT

FOR_BROWSERS = {"cache-control", "content-encoding", "vary"}
"""What a page may read anyway, or need not, as its browser sees to it."""


def test_a_page_may_read_every_field_that_openapi_names() -> None:
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())["paths"]
    answers = [answer for item in paths.values() for each in item.values() for answer in each["responses"].values()]
    named = {name for answer in answers for name in answer.get("headers", {})}
    assert "X-Gathernd-Shape" in named
    assert {name.lower() for name in named} <= {name.lower() for name in READABLE} | FOR_BROWSERS

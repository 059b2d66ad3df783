"""CORS under another ASGI server; tests/http/test_foreign_callers.py has our own."""

from __future__ import annotations

import pytest

from app.main import create_app
from app.settings import Settings
from tests.api.asgi import ask

PAGE = "https://app.example"


def fields(origin: str) -> dict[str, str]:
    """The header fields of the answer to a page of `origin` that asks whether the service is alive."""
    return ask(create_app(Settings(cors_origins=(PAGE,))), "GET", "/livez", (b"origin", origin.encode()))[1]


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

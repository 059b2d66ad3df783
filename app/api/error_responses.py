"""Errors over HTTP: the common error body (RFC 9457) and the header fields."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from app.api.accept_header import prefers_page
from app.api.page_layout import PAGE_FIELDS, not_found_page
from app.api.route_table import is_protocol
from app.errors import CATALOGUE, Code, GatherError, Place, Rule
from app.errors.hints import hint_of
from app.formats import body_formats
from app.server.raw_error_response import RenderedError
from app.surrogate_safe_json import dump

PROBLEM_JSON: Final = b"application/problem+json"
JSON: Final = body_formats.JSON

RETRY_AFTER_DEFAULT: Final = 1
EXAMPLE_REQUEST_ID: Final = "5f2c9a1e-1"
"""The request ID in the examples of pages and OpenAPI."""
_PAGE: Final = b"text/html; charset=utf-8"
_PAGE_FIELDS: Final = [(b"cache-control", b"no-store"), *PAGE_FIELDS]


def problem(error: GatherError, request_id: str) -> dict[str, Any]:
    """Return the members of the error body for `error`."""
    body: dict[str, Any] = {
        "type": f"/errors/{error.code}",
        "title": CATALOGUE[error.code].title,
        "status": CATALOGUE[error.code].status,
        "code": error.code,
        "detail": error.detail,
    }
    if error.rule is not None:
        body["rule"] = {"dialect": error.rule.dialect, "clause": error.rule.clause, "text": error.rule.text}
    if error.places:
        body["errors"] = [_place_body(place) for place in error.places]
        body["total"] = error.total
    body.update(error.facts)
    body["hint"] = hint_of(error, _retry_after(error))
    body["request_id"] = request_id
    return body


def error_body(error: GatherError, request_id: str, path: str) -> tuple[bytes, bytes]:
    """Return the content type and the bytes of the error body for a request to `path`.

    Clients of the inference protocol expect plain JSON with a top-level string `error`; the other members appear
    alongside it.
    """
    members = problem(error, request_id)
    if is_protocol(path):
        return JSON, dump({"error": error.detail, **members})
    return PROBLEM_JSON, dump(members)


def example_answer(code: Code) -> dict[str, Any]:
    """Return the complete response body for the example command of an error code."""
    example = CATALOGUE[code].example
    facts = dict(example.members)
    places = [Place(**place) for place in facts.pop("errors", ())]
    rule = Rule(**facts.pop("rule")) if "rule" in facts else None
    error = GatherError(code, example.detail, places=places, rule=rule, facts=facts, hint=example.hint)
    path = re.search(r"http://[^/]+(/[^ ?']*)", example.command)
    assert path is not None
    found: dict[str, Any] = json.loads(error_body(error, EXAMPLE_REQUEST_ID, path[1])[1])
    return found


def _place_body(place: Place) -> dict[str, Any]:
    member: dict[str, Any] = {"pointer": place.pointer}
    if place.position is not None:
        member["position"] = place.position
    if place.value is not None:
        member["value"] = _portable_value(place.value)
    if place.axis is not None:
        member["axis"] = place.axis
        member["size"] = place.size
    if place.axis is not None or place.allowed is not None:
        member["allowed"] = place.allowed
    if place.offset is not None:
        member["offset"] = place.offset
    return member


def _portable_value(value: int | float | str) -> int | float | str:
    """Convert a value to one that all JSON parsers accept: an integer that does not fit in 64 bits becomes text."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"{value:#x}" if value.bit_length() > 4096 else str(value)
    return value


def _retry_after(error: GatherError) -> int:
    return error.retry_after or RETRY_AFTER_DEFAULT


def problem_headers(error: GatherError) -> list[tuple[bytes, bytes]]:
    """Return an error's header fields, except Content-Type and Content-Length."""
    headers = []
    if CATALOGUE[error.code].status == 503:
        headers.append((b"retry-after", b"%d" % _retry_after(error)))
    if error.code == "unauthorized":
        headers.append((b"www-authenticate", b'Bearer realm="gathernd"'))
    return headers


def render_error(error: GatherError, request_id: str, path: str, accept: bytes = b"") -> RenderedError:
    """Return the response for `error` to a request for `path`.

    For not_found, clients whose Accept field prefers HTML (browsers) get a page. All other clients get the error body.
    """
    if error.code == "not_found" and prefers_page(accept) and not is_protocol(path):
        body = not_found_page(path, error.detail, hint_of(error, _retry_after(error)))
        return RenderedError(CATALOGUE[error.code].status, _PAGE_FIELDS, _PAGE, body)
    content_type, body = error_body(error, request_id, path)
    return RenderedError(CATALOGUE[error.code].status, problem_headers(error), content_type, body)

"""Errors over HTTP: the one table from code to status, and the one shape of an error body (RFC 9457).

`STATUS` is exhaustive over the catalogue, which a test holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.api.accept_header import prefers_page
from app.api.error_catalogue import CATALOGUE, hint_of
from app.api.page_layout import PAGE_FIELDS, not_found_page
from app.api.route_table import is_protocol
from app.errors import Code, GatherError, Place
from app.server.refusal_response import RenderedError
from app.surrogate_safe_json import dump
from app.wire import body_formats

PROBLEM_JSON: Final = b"application/problem+json"
JSON: Final = body_formats.JSON.media_type

STATUS: Final[Mapping[Code, int]] = {
    "malformed_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "tensor_not_found": 404,
    "model_not_found": 404,
    "request_timeout": 408,
    "header_too_large": 431,
    "name_conflict": 409,
    "tensor_in_use": 409,
    "precondition_failed": 412,
    "range_not_satisfiable": 416,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_field": 422,
    "unsupported_dtype": 422,
    "value_not_representable": 422,
    "element_count_mismatch": 422,
    "rank_too_small": 422,
    "rank_mismatch": 422,
    "batch_dims_out_of_range": 422,
    "batch_shape_mismatch": 422,
    "index_depth_out_of_range": 422,
    "axis_out_of_range": 422,
    "indices_shape_mismatch": 422,
    "index_out_of_bounds": 422,
    "output_too_large": 422,
    "limit_exceeded": 422,
    "updates_shape_mismatch": 422,
    "offsets_invalid": 422,
    "feature_mismatch": 422,
    "device_unavailable": 422,
    "overloaded": 503,
    "not_ready": 503,
    "deadline_exceeded": 503,
    "shard_unavailable": 503,
    "not_implemented": 501,
    "tensor_damaged": 500,
    "import_failed": 502,
    "insufficient_storage": 507,
    "internal": 500,
}
RETRY_AFTER_DEFAULT: Final = 1
_PAGE: Final = b"text/html; charset=utf-8"
_PAGE_FIELDS: Final = [
    (b"cache-control", b"no-store"),
    *((name.encode(), value.encode()) for name, value in PAGE_FIELDS.items()),
]


def problem(error: GatherError, request_id: str) -> dict[str, Any]:
    """The members of the error body for `error`."""
    body: dict[str, Any] = {
        "type": f"/errors/{error.code}",
        "title": CATALOGUE[error.code].title,
        "status": STATUS[error.code],
        "code": error.code,
        "detail": error.detail,
    }
    if error.rule is not None:
        body["rule"] = {"dialect": error.rule.dialect, "clause": error.rule.clause, "text": error.rule.text}
    if error.places:
        body["errors"] = [_place(place) for place in error.places]
        body["total"] = error.total
    body.update(error.facts)
    body["hint"] = hint_of(error, _retry_after(error))
    body["request_id"] = request_id
    return body


def error_body(error: GatherError, request_id: str, path: str) -> tuple[bytes, bytes]:
    """The content type and the bytes of the error body for a request to `path`.

    Clients of the inference protocol look for a top-level string `error` in plain JSON; the rest stands beside it.
    """
    members = problem(error, request_id)
    if is_protocol(path):
        return JSON, dump({"error": error.detail, **members})
    return PROBLEM_JSON, dump(members)


def _place(place: Place) -> dict[str, Any]:
    member: dict[str, Any] = {"pointer": place.pointer}
    if place.position is not None:
        member["position"] = place.position
    if place.value is not None:
        member["value"] = _plain(place.value)
    if place.axis is not None:
        member["axis"] = place.axis
        member["size"] = place.size
    if place.axis is not None or place.allowed is not None:
        member["allowed"] = place.allowed
    return member


def _plain(value: int | float | str) -> int | float | str:
    """A value that JSON readers can take: an integer beyond 64 bits becomes its decimal text."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"{value:#x}" if value.bit_length() > 4096 else str(value)
    return value


def _retry_after(error: GatherError) -> int:
    return error.retry_after or RETRY_AFTER_DEFAULT


def problem_headers(error: GatherError) -> list[tuple[bytes, bytes]]:
    """The header fields that go with an error besides its type and length."""
    headers = []
    if STATUS[error.code] == 503:
        headers.append((b"retry-after", b"%d" % _retry_after(error)))
    if error.code == "unauthorized":
        headers.append((b"www-authenticate", b'Bearer realm="gathernd"'))
    return headers


def render_error(error: GatherError, request_id: str, path: str, accept: bytes = b"") -> RenderedError:
    """The answer to a request for `path` that is refused with `error`.

    A browser, whose Accept prefers HTML, gets a page for what is not found; all others get the error body.
    """
    if error.code == "not_found" and prefers_page(accept) and not is_protocol(path):
        body = not_found_page(path, error.detail, hint_of(error, _retry_after(error)))
        return RenderedError(STATUS[error.code], _PAGE_FIELDS, _PAGE, body)
    content_type, body = error_body(error, request_id, path)
    return RenderedError(STATUS[error.code], problem_headers(error), content_type, body)

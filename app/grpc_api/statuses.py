"""Errors over gRPC: the one table from code to status, and the problem body that goes with it.

`STATUS` is exhaustive over the catalogue, which a test holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from app.api.error_responses import problem
from app.errors import Code, GatherError
from app.surrogate_safe_json import dump

STATUS: Final[Mapping[Code, str]] = {
    "malformed_request": "INVALID_ARGUMENT",
    "unauthorized": "UNAUTHENTICATED",
    "forbidden": "PERMISSION_DENIED",
    "not_found": "UNIMPLEMENTED",
    "method_not_allowed": "UNIMPLEMENTED",
    "tensor_not_found": "NOT_FOUND",
    "model_not_found": "NOT_FOUND",
    "request_timeout": "DEADLINE_EXCEEDED",
    "header_too_large": "RESOURCE_EXHAUSTED",
    "name_conflict": "ALREADY_EXISTS",
    "tensor_in_use": "FAILED_PRECONDITION",
    "precondition_failed": "FAILED_PRECONDITION",
    "range_not_satisfiable": "OUT_OF_RANGE",
    "payload_too_large": "RESOURCE_EXHAUSTED",
    "unsupported_media_type": "INVALID_ARGUMENT",
    "invalid_field": "INVALID_ARGUMENT",
    "unsupported_dtype": "INVALID_ARGUMENT",
    "value_not_representable": "INVALID_ARGUMENT",
    "element_count_mismatch": "INVALID_ARGUMENT",
    "rank_too_small": "INVALID_ARGUMENT",
    "rank_mismatch": "INVALID_ARGUMENT",
    "batch_dims_out_of_range": "INVALID_ARGUMENT",
    "batch_shape_mismatch": "INVALID_ARGUMENT",
    "index_depth_out_of_range": "INVALID_ARGUMENT",
    "axis_out_of_range": "INVALID_ARGUMENT",
    "indices_shape_mismatch": "INVALID_ARGUMENT",
    "index_out_of_bounds": "OUT_OF_RANGE",
    "output_too_large": "RESOURCE_EXHAUSTED",
    "limit_exceeded": "RESOURCE_EXHAUSTED",
    "updates_shape_mismatch": "INVALID_ARGUMENT",
    "offsets_invalid": "INVALID_ARGUMENT",
    "feature_mismatch": "INVALID_ARGUMENT",
    "device_unavailable": "FAILED_PRECONDITION",
    "overloaded": "UNAVAILABLE",
    "not_ready": "UNAVAILABLE",
    "deadline_exceeded": "DEADLINE_EXCEEDED",
    "not_implemented": "UNIMPLEMENTED",
    "shard_unavailable": "UNAVAILABLE",
    "tensor_damaged": "DATA_LOSS",
    "import_failed": "UNAVAILABLE",
    "insufficient_storage": "RESOURCE_EXHAUSTED",
    "internal": "INTERNAL",
}
PROBLEM: Final = "gathernd-problem-bin"
"""The trailing metadata that has the problem body."""
MOST_PROBLEM_BYTES: Final = 4096
_MOST_DETAIL: Final = 512
"""Characters of an error's detail in the status message and in a problem body that is too long: together with the
body they stay below 8 KiB, the most bytes of metadata that clients take by default."""

_MOST_SENT: Final = 1536
"""Bytes of a status message as it is sent, percent-encoded."""
_LONGEST_SENT: Final = 12
"""So many bytes a character has then at most."""


def problem_bytes(error: GatherError, request_id: str) -> bytes:
    """The problem body as JSON of at most MOST_PROBLEM_BYTES: places and then the ends of texts are left out."""
    body: dict[str, Any] = problem(error, request_id)
    text = dump(body)
    while len(text) > MOST_PROBLEM_BYTES and body.get("errors"):
        body["errors"] = body["errors"][:-1]
        text = dump(body)
    for most in (_MOST_DETAIL, 128, 16):
        if len(text) <= MOST_PROBLEM_BYTES:
            break
        body = {name: _cut(value, most) for name, value in body.items() if name != "errors"}
        text = dump(body)
    return text


def status_message(error: GatherError) -> str:
    """The error's detail as the status has it."""
    text = str(_cut(error.detail, _MOST_DETAIL))
    if len(quote(text, " ", errors="replace")) > _MOST_SENT:
        text = str(_cut(error.detail, _MOST_SENT // _LONGEST_SENT))
    return text.encode("utf-8", "replace").decode()


def _cut(value: Any, most: int) -> Any:
    return value[:most] + "…" if isinstance(value, str) and len(value) > most else value

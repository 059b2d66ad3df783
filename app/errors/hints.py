"""The hint of an error: one sentence that says how to fix the request, with the facts of that request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.errors import CATALOGUE, GatherError
from app.near_name import shorten

_OTHER_SETTINGS: Final[Mapping[str, str]] = {
    "body_bytes": "GATHERND_MAX_JSON_BYTES for JSON or GATHERND_MAX_BODY_BYTES for the binary formats",
    "grpc_calls": "GATHERND_MAX_REQUESTS or GATHERND_MEMORY_BUDGET",
    "memory_budget": "GATHERND_MEMORY_BUDGET",
    "message_bytes": "GATHERND_GRPC_MAX_MESSAGE_BYTES",
    "queue_timeout": "GATHERND_QUEUE_TIMEOUT",
    "store_aliases": "GATHERND_MAX_TENSORS",
    "store_tensors": "GATHERND_MAX_TENSORS",
}
"""Settings whose limit has a different name in the error's member `limit`."""
_FIXED: Final = frozenset(
    (
        *("data_members", "fields_bytes", "grpc_message_bytes", "gzip_members", "npy_header_bytes"),
        *("safetensors_header_bytes", "small_body_bytes"),
    )
)
"""Limits that no setting changes."""
_TEXTS: Final = ("/parameters/lookup", "/__metadata__/lookup")
"""Fields of the inference protocol and of safetensors that hold a lookup as JSON text."""
_LARGEST: Final = 2**63 - 1
"""A limit that no setting can raise."""


def hint_of(error: GatherError, retry_after: int) -> str:
    """Return one sentence that says how to fix the request: the error's own, or the catalogue's with the error's facts.

    `retry_after` is the value of the response's Retry-After header, in seconds.
    """
    return _relative_to_text(_hint(error, retry_after))


def _relative_to_text(hint: str) -> str:
    """Make the pointers in a hint relative to the JSON text that they point into, and say so.

    Other hints are unchanged.
    """
    for text in _TEXTS:
        if f"{text}/" in hint and not hint.startswith(f"In the JSON text at {text}: "):
            return f"In the JSON text at {text}: {hint.replace(f'{text}/', '/')}"
    return hint


def _hint(error: GatherError, retry_after: int) -> str:
    if error.hint is not None:
        return error.hint
    facts = _template_values(error, retry_after)
    for template in CATALOGUE[error.code].hints:
        try:
            return template.format_map(facts)
        except KeyError:
            continue
    raise AssertionError("the last template needs no facts")


def _template_values(error: GatherError, retry_after: int) -> dict[str, object]:
    """Return the values that templates may use, by name, as far as the error has them: pointer, axis, size, `low` and
    `high` of the first place; `limit`, `maximum` and `setting` of a limit; `retry_after` in seconds.
    """
    facts: dict[str, object] = {"retry_after": retry_after}
    if error.places:
        place = error.places[0]
        if place.pointer:
            facts["pointer"] = shorten(place.pointer)
        if place.axis is not None and place.size is not None:
            facts["axis"], facts["size"] = place.axis, place.size
        if place.allowed is not None:
            facts["low"], facts["high"] = place.allowed
    facts.update(error.facts)
    limit = error.facts.get("limit")
    if isinstance(limit, str) and limit not in _FIXED and error.facts.get("maximum") != _LARGEST:
        facts["setting"] = setting_of(limit)
    return facts


def setting_of(limit: str) -> str:
    """Return the setting of a limit: GATHERND_MAX_ plus the limit's name in errors, with a few exceptions."""
    return _OTHER_SETTINGS.get(limit, f"GATHERND_MAX_{limit.upper()}")

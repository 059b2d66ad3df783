"""The hint of an error: one sentence on how to mend the request, with the facts of that request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.errors import GatherError
from app.errors.catalogue import CATALOGUE
from app.near_name import shorten

SETTING_OF_LIMIT: Final[Mapping[str, str]] = {
    "body_bytes": "GATHERND_MAX_JSON_BYTES for JSON or GATHERND_MAX_BODY_BYTES for the binary formats",
    "connections": "GATHERND_MAX_CONNECTIONS",
    "dimension": "GATHERND_MAX_DIMENSION",
    "elements": "GATHERND_MAX_ELEMENTS",
    "features": "GATHERND_MAX_FEATURES",
    "grpc_calls": "GATHERND_MAX_REQUESTS or GATHERND_MEMORY_BUDGET",
    "header_bytes": "GATHERND_MAX_HEADER_BYTES",
    "header_fields": "GATHERND_MAX_HEADER_FIELDS",
    "idempotency_keys": "GATHERND_MAX_IDEMPOTENCY_KEYS",
    "imports": "GATHERND_MAX_IMPORTS",
    "json_bytes": "GATHERND_MAX_JSON_BYTES",
    "memory_budget": "GATHERND_MEMORY_BUDGET",
    "message_bytes": "GATHERND_GRPC_MAX_MESSAGE_BYTES",
    "output_bytes": "GATHERND_MAX_OUTPUT_BYTES",
    "queue": "GATHERND_MAX_QUEUE",
    "queue_timeout": "GATHERND_QUEUE_TIMEOUT",
    "rank": "GATHERND_MAX_RANK",
    "requests": "GATHERND_MAX_REQUESTS",
    "store_bytes": "GATHERND_MAX_STORE_BYTES",
    "store_aliases": "GATHERND_MAX_TENSORS",
    "store_tensors": "GATHERND_MAX_TENSORS",
    "string_bytes": "GATHERND_MAX_STRING_BYTES",
    "upload_bytes": "GATHERND_MAX_UPLOAD_BYTES",
}
"""The setting behind each limit that an operator may change, by the name that errors have for it in `limit`."""
_TEXTS: Final = ("/parameters/lookup", "/__metadata__/lookup")
"""Where the inference protocol and safetensors have the JSON of a lookup, as text."""
_LARGEST: Final = 2**63 - 1
"""A limit that no setting can raise."""


def hint_of(error: GatherError, retry_after: int) -> str:
    """One sentence on how to mend the request: the error's own, or the catalogue's with the facts of the error.

    `retry_after` is what the answer's field Retry-After says where it has one.
    """
    return _of_text(_hint(error, retry_after))


def _of_text(hint: str) -> str:
    """The hint, which says so if its places are in a text, as pointers into the JSON that is the text."""
    for text in _TEXTS:
        if f"{text}/" in hint and not hint.startswith(f"In the JSON text at {text}: "):
            return f"In the JSON text at {text}: {hint.replace(f'{text}/', '/')}"
    return hint


def _hint(error: GatherError, retry_after: int) -> str:
    if error.hint is not None:
        return error.hint
    facts = _facts(error, retry_after)
    for template in CATALOGUE[error.code].hints:
        try:
            return template.format_map(facts)
        except KeyError:
            continue
    raise AssertionError("the last template needs no facts")


def _facts(error: GatherError, retry_after: int) -> dict[str, object]:
    """What templates may name: pointer, axis and size of the first place, its `low` and `high`; `limit`, `maximum` and
    `setting` of a limit; `retry_after` in seconds. Only what the error has.
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
    setting = SETTING_OF_LIMIT.get(str(error.facts.get("limit")))
    if setting is not None and error.facts.get("maximum") != _LARGEST:
        facts["setting"] = setting
    return facts

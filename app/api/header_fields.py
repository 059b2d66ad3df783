"""Header fields that occur more than once: a list is one list (RFC 9110, 5.3), anything else may stand there once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.errors import GatherError

Field = tuple[bytes, bytes]

SINGLE: Final = frozenset(
    (
        b"access-control-request-method",
        b"authorization",
        b"content-encoding",  # a list by RFC 9110, of which this service reads one member
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"inference-header-content-length",
        b"origin",
        b"transfer-encoding",  # a list too: to combine two is how requests are smuggled past proxies
        b"x-gathernd-timeout",
        b"x-request-id",
    )
)
"""The fields that are read here and are no lists. A repeated traceparent counts as none, as its specification says."""


def combined(sent: Sequence[Field]) -> dict[bytes, bytes]:
    """The fields by name; the values of one that occurs more than once are joined in their order, by commas."""
    found: dict[bytes, bytes] = {}
    for name, value in sent:
        found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found


def refuse_repeated(sent: Sequence[Field]) -> None:
    """Raises malformed_request where a field that is no list occurs more than once."""
    seen: set[bytes] = set()
    for name, _ in sent:
        if name in SINGLE and name in seen:
            raise GatherError("malformed_request", f"the header field {name.decode()} occurs more than once")
        seen.add(name)

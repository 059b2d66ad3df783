"""The caller's own deadline: the header field X-Gathernd-Timeout, after which a waiting gather is refused.

The service's deadline is the setting GATHERND_DEADLINE; the shorter of the two applies.
"""

from __future__ import annotations

import re
from typing import Final

from app.api.asgi_request import Handler, RequestContext
from app.errors import GatherError

TIMEOUT: Final = b"x-gathernd-timeout"
"""The header field of a caller's own deadline, in seconds from the arrival of the header."""
_SECONDS: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")


def with_deadline(handler: Handler, seconds: float) -> Handler:
    """Wrap `handler` so that a request's deadline is at most `seconds` after its arrival."""

    async def limited(context: RequestContext) -> None:
        context.wait_at_most(seconds)
        await handler(context)

    return limited


def _seconds_like(field: bytes) -> str:
    """Return the number at the start of an invalid field, for a hint; in seconds if it has the unit s or ms."""
    match = re.match(rb"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms)?", field)
    if match is None:
        return "0.25"
    return f"{float(match[1]) / 1000:g}" if match[2] else match[1].decode()


def seconds_of(field: bytes) -> float:
    """Parse the seconds in a field X-Gathernd-Timeout. Raises invalid_field."""
    if not _SECONDS.fullmatch(field):
        raise GatherError(
            "invalid_field",
            "X-Gathernd-Timeout must be a number of seconds, as in 0.25",
            pointer="/x-gathernd-timeout",
            hint=f"Send 'X-Gathernd-Timeout: {_seconds_like(field)}', a number of seconds.",
        )
    return float(field)

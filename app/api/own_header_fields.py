"""Request header fields specific to this service: the caller's deadline, and two fields that shards read.

X-Gathernd-Timeout is the caller's own deadline, after which a waiting gather is refused. The service's deadline is set
by GATHERND_DEADLINE; the shorter of the two applies.

X-Gathernd-Node identifies the shard that a request is meant for. An address may have belonged to another shard before,
and some callers may not have noticed the change. So a shard refuses every request meant for another shard.

X-Gathernd-Sequence is the lowest sequence number of a range's data that a reader accepts. A range that accepts scatters
has a sequence number, which is the last part of its ETag. A router requires at least the sequence number that its
client has already seen.

Services that are not shards ignore the last two fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from app.api.asgi_request import Handler, RequestContext
from app.errors import GatherError

TIMEOUT: Final = b"x-gathernd-timeout"
"""The field with a caller's own deadline, in seconds from the arrival of the header."""
_SECONDS: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
NODE: Final = "X-Gathernd-Node"
NODE_FIELD: Final = NODE.lower().encode()
"""The field's name in lowercase, as it is read and as a router writes it."""
SEQUENCE: Final = b"x-gathernd-sequence"
WaitForSequence: TypeAlias = Callable[[Handler, bytes], Handler]
"""Wraps a handler so that it waits until the range's data has reached the sequence number in the field."""


def with_deadline(handler: Handler, seconds: float) -> Handler:
    """Wrap `handler` so that a request's deadline is no later than `seconds` after its arrival."""

    async def limited(context: RequestContext) -> None:
        context.wait_at_most(seconds)
        await handler(context)

    return limited


def _suggested_seconds(field: bytes) -> str:
    """Return the number at the start of an invalid field, for a hint.

    It is converted to seconds if it has the unit s or ms.
    """
    match = re.match(rb"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms)?", field)
    if match is None:
        return "0.25"
    return f"{float(match[1]) / 1000:g}" if match[2] else match[1].decode()


def seconds_of(field: bytes) -> float:
    """Parse the seconds in an X-Gathernd-Timeout field. Raises invalid_field."""
    if not _SECONDS.fullmatch(field):
        raise GatherError(
            "invalid_field",
            "X-Gathernd-Timeout must be a number of seconds, as in 0.25",
            pointer="/x-gathernd-timeout",
            hint=f"Send 'X-Gathernd-Timeout: {_suggested_seconds(field)}', a number of seconds.",
        )
    return float(field)


def check_target_shard(headers: Mapping[bytes, bytes], node: str) -> None:
    """Raise precondition_failed if a request with these fields is meant for a shard other than `node`."""
    meant = headers.get(NODE_FIELD, node.encode())
    if meant != node.encode():
        raise GatherError(
            "precondition_failed",
            f"this is the shard {node!r}, but the request was meant for {meant.decode(errors='replace')!r}",
            hint="Read the catalogue again: it says where each shard is now.",
        )

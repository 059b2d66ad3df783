"""The oldest content of a range that a reader accepts: the header field X-Gathernd-Sequence, which routers send.

A range that accepts scatters has a sequence number, the last part of its ETag. A router requests at least the sequence
number that its client has seen. Services that are not shards ignore the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from app.api.asgi_request import Handler

SEQUENCE: Final = "X-Gathernd-Sequence"
FIELD: Final = SEQUENCE.lower().encode()
"""The field's name in lower case, as it is read and as a router writes it."""
AfterWaiting: TypeAlias = Callable[[Handler, bytes], Handler]
"""Wraps a handler so that it waits until the content has reached the field's sequence number."""

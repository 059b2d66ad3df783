"""The oldest content that a reader takes of a range: the header field X-Gathernd-Sequence, which routers send.

A range that takes scatters is at a sequence, with which its ETag ends; a router asks for the one that its client has
seen. Services that are no shards do not read the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from app.api.asgi_request import Handler

SEQUENCE: Final = "X-Gathernd-Sequence"
FIELD: Final = SEQUENCE.lower().encode()
"""Its name as requests are read, and as a router writes it."""
AfterWaiting: TypeAlias = Callable[[Handler, bytes], Handler]
"""Makes of a handler, and the value of the field, one that waits until the content is no older than that."""

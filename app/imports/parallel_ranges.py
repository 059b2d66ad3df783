"""A span of a source in pieces, one after the other, while the next ones are asked for: several ranges at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from app.imports.source_interface import PIECE_BYTES, Source
from app.tensors.buffer_type import Buffer

AT_ONCE: Final = 4
MEMORY_BYTES: Final = (2 * AT_ONCE + 1) * PIECE_BYTES
"""Memory that is charged for a reading: the pieces that are asked for, as their library and as we hold them, and the
one that is being written."""


async def pieces(source: Source, begin: int, end: int) -> AsyncGenerator[Buffer, None]:
    """The bytes from `begin` up to `end`, in order. Raises SourceFailed."""
    asked: deque[asyncio.Task[Buffer]] = deque()
    place = begin
    try:
        while place < end or asked:
            while place < end and len(asked) < AT_ONCE:
                last = min(place + PIECE_BYTES, end)
                asked.append(asyncio.ensure_future(source.read(place, last)))
                place = last
            piece = await asked[0]
            asked.popleft()
            yield piece
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

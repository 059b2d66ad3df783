"""Open the source at a URL, and read a span of it in several concurrent ranges."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from app.imports.file_source import FileSource
from app.imports.source import PIECE_BYTES, Source
from app.imports.source_urls import AllowedSources, SourceUrl
from app.tensors.buffer_type import Buffer

AT_ONCE: Final = 4
MEMORY_BYTES: Final = (2 * AT_ONCE + 1) * PIECE_BYTES
"""Bytes charged for reading: each requested piece, once in its library and once here, and the piece that is being
written.
"""


def source_of(url: SourceUrl, allowed: AllowedSources) -> Source:
    """Create the source for a URL. It is not opened yet."""
    # Import these modules here, because their third-party libraries cost time and memory and are not needed without
    # imports.
    if url.scheme == "file":
        return FileSource(url, allowed)
    if url.scheme == "s3":
        from app.imports.s3_source import S3Source  # noqa: PLC0415

        return S3Source(url, allowed.s3_endpoint)
    from app.imports.https_source import HttpsSource  # noqa: PLC0415

    return HttpsSource(url, allowed)


async def pieces(source: Source, begin: int, end: int) -> AsyncGenerator[Buffer, None]:
    """Yield the bytes from `begin` up to `end` in order, requesting the next pieces ahead of time.

    Raises SourceFailed.
    """
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

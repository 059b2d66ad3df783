"""Read a file from a single response, from the first byte to the last, because its server does not support ranges."""

from __future__ import annotations

from asyncio import Lock, Timeout
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import httpx

from app.imports.source import HEAD_BYTES, SourceFailed

_KEPT: Final = (1 << 20) + (1 << 17)
"""Bytes kept from the start of the file, so that the header (at most 1 MiB) can be read before the items."""


class WholeAnswer:
    """The body of a response, read in ascending order. `size` is None while it is unknown.

    A broken connection cannot be resumed, because the server does not support ranges.
    """

    def __init__(self, answer: httpx.Response) -> None:
        declared = answer.headers.get("content-length")
        self.size = int(declared) if declared is not None and declared.isdecimal() else None
        self._pieces = answer.aiter_raw()
        self._rest = memoryview(b"")
        self._kept = bytearray()
        self._place = 0
        self._lock = Lock()  # several pieces are requested concurrently, in order
        self._stack = AsyncExitStack()

    def keep_open(self, stack: AsyncExitStack) -> None:
        """Keep the response open until `close`."""
        self._stack = stack.pop_all()

    async def close(self) -> None:
        """Release the connection."""
        await self._stack.aclose()

    async def head(self) -> bytes:
        """Return the first HEAD_BYTES, or all bytes if there are fewer. Raises httpx.TransportError."""
        while len(self._kept) < HEAD_BYTES:
            piece = await self._next(HEAD_BYTES - len(self._kept))
            if not piece:
                if self.size not in (None, len(self._kept)):
                    raise httpx.ReadError("it ends early")
                self.size = len(self._kept)
                break
        return bytes(self._kept)

    async def read(self, begin: int, end: int, size: int | None, in_time: Callable[[int], Timeout]) -> bytearray:
        """Return the bytes from `begin` up to `end` of a file of `size` bytes. `in_time` limits the time.

        Raises SourceFailed if the connection breaks or the file has a different size, and TimeoutError.
        """
        async with self._lock, in_time(max(0, end - self._place)):
            content = self._kept[begin:end]
            try:
                while begin + len(content) < end:
                    piece = await self._next(end - self._place)
                    if not piece:
                        raise SourceFailed("it ends before what its header says")
                    content += piece[max(0, begin - self._place + len(piece)) :]
                if end == size and await self._next(1):
                    raise SourceFailed("it has more bytes than its header says")
            except httpx.TransportError:
                raise SourceFailed(
                    "the connection was cut, and its server sends no ranges (206) to continue from there",
                    "Send the request again, or download the file, and upload it with PUT.",
                ) from None
            return content

    async def _next(self, most: int) -> memoryview:
        """Return the next bytes, at most `most`, or nothing at the end."""
        while not self._rest:
            try:
                self._rest = memoryview(await anext(self._pieces))
            except StopAsyncIteration:
                break
        piece, self._rest = self._rest[:most], self._rest[most:]
        self._place += len(piece)
        if len(self._kept) < _KEPT:
            self._kept += piece
        return piece

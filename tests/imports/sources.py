"""A source that tests hold in memory, and what imports read of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from app.imports import read_source
from app.imports.source import HEAD_BYTES, Checksum, Source
from app.imports.tensor_in_file import Found, find_tensor
from app.memory.budget import UNCOUNTED, Memory

T = TypeVar("T")


class MemorySource:
    """Bytes. `asked` are the ranges that were read."""

    def __init__(self, content: bytes, checksum: Checksum | None = None) -> None:
        self.content = content
        self.size: int | None = len(content)
        self.checksum = checksum
        self.asked: list[tuple[int, int]] = []

    async def open(self) -> bytes:
        return self.content[:HEAD_BYTES]

    async def read(self, begin: int, end: int) -> bytes:
        self.asked.append((begin, end))
        return self.content[begin:end]

    async def close(self) -> None:
        pass


def found_in(source: Source, tensor: str | None = None, memory: Memory = UNCOUNTED) -> Found:
    """Where the tensor is. Raises what `find_tensor` raises."""

    async def work() -> Found:
        return await find_tensor(source, await source.open(), tensor, memory)

    return asyncio.run(closing(source, work()))


def read_tensor(source: Source, tensor: str | None = None) -> bytes:
    """The items of a tensor of a source, as an import reads them. Raises what an import raises."""

    async def work() -> bytes:
        found = await find_tensor(source, await source.open(), tensor, UNCOUNTED)
        return b"".join([bytes(piece) async for piece in read_source.pieces(source, found.begin, found.end)])

    return asyncio.run(closing(source, work()))


def read_all(source: Source) -> bytes:
    """All bytes of a source, as an import reads them."""

    async def work() -> bytes:
        await source.open()
        assert source.size is not None
        return b"".join([bytes(piece) async for piece in read_source.pieces(source, 0, source.size)])

    return asyncio.run(closing(source, work()))


async def closing(source: Source, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; the source is closed then."""
    try:
        return await work
    finally:
        await source.close()

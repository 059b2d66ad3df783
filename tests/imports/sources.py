"""A source that tests hold in memory, and what imports read of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from app.imports import read_source
from app.imports.source import Source
from app.imports.tensor_in_file import find_tensor
from app.memory.budget import UNCOUNTED

T = TypeVar("T")


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

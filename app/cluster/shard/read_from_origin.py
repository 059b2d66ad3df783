"""Read rows of a table again from the URL of its import, if no other shard still has them.

This reads the file as it is now; the caller must compare the digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from app.cluster.shard_map import rows_of
from app.errors import GatherError
from app.imports import read_source
from app.imports.source import SourceFailed
from app.imports.source_urls import AllowedSources
from app.imports.tensor_in_file import find_tensor
from app.memory.budget import UNCOUNTED
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType


def read_origin(
    origin: str,
    rows: tuple[int, int],
    dtype: DType,
    shape: tuple[int, ...],
    allowed: AllowedSources,
    sink: Callable[[Buffer], None],
) -> None:
    """Pass the rows `rows[0]` to `rows[1]` - 1 of `origin` (URL or URL#TENSOR) to `sink`, little-endian. Blocks.

    `dtype` and `shape` describe the rows. Raises the errors of `sink`, and SourceFailed if the rows cannot be read or
    if no prefix in `allowed` covers the URL.
    """
    asyncio.run(_read(origin, rows, dtype, shape, allowed, sink))


async def _read(
    origin: str,
    rows: tuple[int, int],
    dtype: DType,
    shape: tuple[int, ...],
    allowed: AllowedSources,
    sink: Callable[[Buffer], None],
) -> None:
    address, _, tensor = origin.partition("#")
    try:
        source = read_source.source_of(allowed.check(address), allowed)
    except GatherError as problem:
        raise SourceFailed(problem.detail) from None
    try:
        try:
            found = await find_tensor(source, await source.open(), tensor or None, UNCOUNTED)
        except GatherError as problem:
            raise SourceFailed(problem.detail) from None
        start, count = found.start, rows_of(found.start.shape)
        is_in_order = not start.fortran or len(start.shape) < 2
        of_rows = start.dtype, (rows[1] - rows[0], *start.shape[1:])
        if not (0 <= rows[0] < rows[1] <= count and is_in_order and of_rows == (dtype, shape)):
            raise SourceFailed(f"it does not have the rows {rows[0]} to {rows[1] - 1} in one piece")
        row = (found.end - found.begin) // count
        reading = read_source.pieces(source, found.begin + rows[0] * row, found.begin + rows[1] * row)
        try:
            async for piece in reading:
                await asyncio.to_thread(sink, _to_little_endian(start.dtype, piece) if start.swap else piece)
        finally:
            await reading.aclose()
    finally:
        await source.close()


def _to_little_endian(dtype: DType, piece: Buffer) -> bytes:
    """Convert whole big-endian items to little-endian ones."""
    size = dtype.item_size // 2 if dtype.kind == "complex" else dtype.item_size
    return np.frombuffer(piece, f"u{size}").byteswap().tobytes()

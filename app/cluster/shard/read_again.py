"""A range read again from the URL that its table was imported from, where no other shard has it any more.

What is read is the file as it is now: its last rows are kept back until the digest of all is found to be the one that
the rows of the table had, so that a shard never has others under the range's name.
"""

from __future__ import annotations

import asyncio

import numpy as np

from app.cluster.coordinator.messages import RangeKey
from app.cluster.shard.shard_http import RangeWriter, ShardClient, ShardFailed
from app.cluster.shard_map import range_shape, rows_of
from app.errors import GatherError
from app.imports import read_source
from app.imports.source import SourceFailed
from app.imports.source_urls import AllowedSources
from app.imports.tensor_in_file import find_tensor
from app.memory.budget import UNCOUNTED
from app.store.files.tensor_file import new_hash
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType


def read_again(own: ShardClient, key: RangeKey, origin: str, digest: str, allowed: AllowedSources) -> str:
    """Write the rows of a range, which are at `origin` (URL or URL#TENSOR), to the shard `own`: their digest.

    Blocks. Raises ShardFailed, also where they have another digest than `digest`, and where no prefix in `allowed`
    covers the URL.
    """
    try:
        return asyncio.run(_read_again(own, key, origin, digest, allowed))
    except GatherError as problem:
        raise ShardFailed(f"{origin} is not read: {problem.detail}") from None
    except SourceFailed as problem:
        raise ShardFailed(f"{origin} cannot be read: {problem}") from None


async def _read_again(own: ShardClient, key: RangeKey, origin: str, digest: str, allowed: AllowedSources) -> str:
    address, _, tensor = origin.partition("#")
    source = read_source.source_of(allowed.check(address), allowed)
    try:
        found = await find_tensor(source, await source.open(), tensor or None, UNCOUNTED)
        start, rows = found.start, rows_of(found.start.shape)
        if key.stop > rows or (start.fortran and len(start.shape) > 1):
            raise ShardFailed(f"{origin} has not the rows {key.start} to {key.stop - 1} in one piece")
        row = (found.end - found.begin) // rows
        shape = range_shape(start.shape, key.start, key.stop)
        size = (key.stop - key.start) * row
        writer = RangeWriter(own, key, start.dtype.name, ",".join(map(str, shape)), size)
        hashed, kept_back = new_hash(start.dtype, shape), b""
        reading = read_source.pieces(source, found.begin + key.start * row, found.begin + key.stop * row)
        try:
            async for piece in reading:
                rows_of_piece = _swapped(start.dtype, piece) if start.swap else bytes(piece)
                hashed.update(rows_of_piece)
                await asyncio.to_thread(writer.write, kept_back)
                kept_back = rows_of_piece
            if hashed.hexdigest() != digest:
                raise ShardFailed(f"{origin} has other rows by now")
            await asyncio.to_thread(writer.write, kept_back)
            return await asyncio.to_thread(writer.finish)
        finally:
            await reading.aclose()
            writer.close()
    finally:
        await source.close()


def _swapped(dtype: DType, piece: Buffer) -> bytes:
    """Big-endian items, whole ones, as little-endian ones."""
    size = dtype.item_size // 2 if dtype.kind == "complex" else dtype.item_size
    return np.frombuffer(piece, f"u{size}").byteswap().tobytes()

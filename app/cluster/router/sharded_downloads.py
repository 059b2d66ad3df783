"""`GET /tensors/{name}/content` and `/keys` of a table in row ranges: one response with the ranges in order.

The whole response comes from one version: the one in the first map that is read. Rows are read by gathers or, if the
table changes, from snapshots.
"""

from __future__ import annotations

from math import prod
from time import perf_counter
from typing import Final

import numpy as np

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import is_unchanged
from app.api.routes.tensors_content import BY_ACCEPT, Download, codec_for_keys, codec_for_rows, no_keys, row_range
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.router import Router
from app.cluster.router.sharded_tensors import ShardedTensors
from app.cluster.router.table_snapshot import ContentSnapshot
from app.errors import GatherError
from app.formats.body_formats import SAFETENSORS_FILE, TensorCodec
from app.formats.safetensors.upload import keys_head
from app.memory.budget import MemoryReservation
from app.store import Metadata
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.little_endian_items import packed_bytes
from app.tensors.tensor import Tensor

_CHUNK: Final = 1 << 22
"""Bytes of rows per gather; for strings, whose sizes are unknown, the bytes of their offsets."""
_INT64: Final = DTYPES["int64"]


class ShardedDownloads:
    """Send the data and keys of the tensors in `store`. Gathers of `service` read the rows."""

    def __init__(self, store: ShardedTensors, service: Router) -> None:
        self.store = store
        self.changing = store if isinstance(store, PublishedTensors) else None
        """The store, if its tables can accept scatters or can have keys."""
        self.service = service

    async def content(self, context: RequestContext, name: str) -> None:
        """Handle `GET /tensors/{name}/content`. Raises GatherError if the request is refused."""
        text = context.query_fields().get("rows")
        metadata = self.store.metadata(name)
        if self.changing is not None:
            (metadata,) = await self.changing.current([metadata], context)
        if await is_unchanged(context, metadata.etag, BY_ACCEPT):
            return
        codec = codec_for_rows(context, metadata.dtype)
        if metadata.keys is not None and text is not None:
            raise GatherError(
                "not_implemented",
                f"the rows of {name!r} have no positions: a cluster places them by key",
                pointer="/query/rows",
                hint=(
                    f"Request rows by key, as in /tensors/{name}/rows?key=7, or all rows with /tensors/{name}/content."
                ),
            )
        dtype = DTYPES[metadata.dtype]
        if metadata.keys is not None and codec is SAFETENSORS_FILE:
            assert self.changing is not None, "a static map has no keys"
            snapshot = await self.changing.keyed_snapshot(metadata, context, with_rows=True)
            assert snapshot.keys is not None
            shape = snapshot.rows, *metadata.shape[1:]
            head = keys_head(snapshot.keys, (dtype, shape, prod(shape) * dtype.item_size))
            await _send_snapshot(context, metadata, codec, metadata.dtype, shape, head, snapshot)
            return
        is_scalar = not metadata.shape
        first, last = (0, 1) if is_scalar and text is None else row_range(text, metadata.shape)
        shape = () if is_scalar else (last - first, *metadata.shape[1:])
        row_bytes = prod(shape[1:]) * (dtype.item_size or 8)
        size = prod(shape) * dtype.item_size
        head = codec.write_head(dtype, shape, size)

        async def is_sent() -> bool:
            """Send the content from snapshots if scatters change the table. Returns False if nothing was sent."""
            if self.changing is None or context.method == "HEAD":
                return False
            snapshot = await self.changing.snapshot(metadata, first, last, context)
            if snapshot is None:
                return False
            start, found = head, shape
            if metadata.keys is not None:  # upserts and removals change the number of rows
                found = snapshot.rows, *shape[1:]
                start = codec.write_head(dtype, found, snapshot.size)
            await _send_snapshot(context, metadata, codec, metadata.dtype, found, start, snapshot)
            return True

        if await is_sent():
            return
        step = max(1, _CHUNK // max(row_bytes, 1))
        starts = range(first, last, step) if row_bytes and context.method != "HEAD" else range(0)
        # Read the first rows before the response begins, so that unavailable rows lead to an error response.
        piece, held = await self._rows(context, metadata, first, min(first + step, last)) if starts else (b"", None)
        try:
            # The table's first scatter may have arrived while the rows were read.
            if held is not None and await is_sent():
                return
            known = len(head) + size if dtype.item_size else None
            await Download(codec, metadata.dtype, shape, metadata.etag, metadata.version, known).begin(context)
            await context.send_piece(head)
            for start in starts:
                if held is None:
                    piece, held = await self._rows(context, metadata, start, min(start + step, last))
                await context.send_piece(piece)
                piece = b""
                held.release()
                held = None
            await context.end_answer()
        finally:
            if held is not None:
                held.release()

    async def keys(self, context: RequestContext, name: str) -> None:
        """Handle `GET /tensors/{name}/keys`. Raises GatherError if the request is refused."""
        context.query_fields()
        metadata = self.store.metadata(name)
        if metadata.keys is None or self.changing is None:
            raise no_keys(name)
        (metadata,) = await self.changing.current([metadata], context)
        assert metadata.keys is not None
        if await is_unchanged(context, metadata.etag, BY_ACCEPT):
            return
        dtype = metadata.keys.dtype
        codec = codec_for_keys(context, dtype)
        if codec is SAFETENSORS_FILE:
            snapshot = await self.changing.keyed_snapshot(metadata, context, with_rows=False)
            assert snapshot.keys is not None
            head = keys_head(snapshot.keys)
        else:
            snapshot = await self.changing.keys_snapshot(metadata, context)
            head = codec.write_head(DTYPES[dtype], (snapshot.rows,), snapshot.rows * DTYPES[dtype].item_size)
        await _send_snapshot(context, metadata, codec, dtype, (snapshot.rows,), head, snapshot)

    async def _rows(
        self, context: RequestContext, metadata: Metadata, start: int, stop: int
    ) -> tuple[bytes | memoryview, MemoryReservation]:
        """Read rows, with a new deadline. Returns their bytes, and the memory to release after the bytes have been
        sent.
        """
        now, memory = perf_counter(), MemoryReservation(context.admission.budget)
        own = ServedRequest(now, now + context.deadline - context.start, memory, context.caller)
        reference = f"{metadata.name}@{metadata.version}"
        indices = Tensor(_INT64, (stop - start,), np.arange(start, stop))
        call = Call("gather", reference, indices, (0,), "onnx-13", data_pointer="/name")
        try:
            memory.charge(indices.array.nbytes)
            if metadata.shape:
                answer = await self.service.run(call, own)
                rows = answer.output
                if context.started and answer.data_etag != metadata.etag:
                    # The bytes already sent come from different data, so the response must not look complete.
                    raise GatherError("shard_unavailable", "a scatter changed the table while it was read")
            else:
                rows = await self.service.read_scalar(reference, own)
            return packed_bytes(rows, memory), memory
        except BaseException:
            memory.release()
            raise


async def _send_snapshot(
    context: RequestContext,
    metadata: Metadata,
    codec: TensorCodec,
    dtype: str,
    shape: tuple[int, ...],
    head: bytes,
    snapshot: ContentSnapshot,
) -> None:
    """Respond with `head` and the snapshot, then close the snapshot."""
    try:
        if not await is_unchanged(context, snapshot.etag, BY_ACCEPT):
            size = len(head) + snapshot.size
            download = Download(codec, dtype, shape, snapshot.etag, metadata.version, size)
            await download.send(context, head, snapshot.pieces)
    finally:
        snapshot.close()

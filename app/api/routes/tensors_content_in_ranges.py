"""`GET /tensors/{name}/content` of a table in row ranges: some rows after others, as gathers from it, in one answer.

All of it is of one version, the one that the first look at the map has found.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Final, Protocol, TypeAlias

import numpy as np

from app.api.asgi_request import Field, RequestContext
from app.api.conditional_requests import is_unchanged
from app.api.routes.tensors_content import BY_ACCEPT, codec_of, content_fields, row_range
from app.errors import GatherError
from app.formats.body_formats import SAFETENSORS_FILE
from app.formats.safetensors.upload import keys_head
from app.memory.budget import MemoryReservation
from app.services.service import Service
from app.store import Metadata
from app.store.tensor_store_interface import TensorStore
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.keys_spec import KeysSpec
from app.tensors.little_endian_items import packed_bytes
from app.tensors.tensor import Tensor

_CHUNK: Final = 1 << 22
"""Bytes of rows that are gathered together; of strings, whose sizes are not known before, those of their places."""
_INT64: Final = DTYPES["int64"]


ScalarReader: TypeAlias = Callable[[str, ServedRequest], Awaitable[Tensor]]
"""Reads a tensor of rank 0, by its reference."""


@dataclass(frozen=True, slots=True)
class ContentSnapshot:
    """What is read of the content that `etag` names, whatever changes it meanwhile: `size` bytes of rows, or of keys.

    `keys` are those that come before the rows. `close` ends it, once.
    """

    etag: str
    size: int
    pieces: AsyncIterator[bytes]
    close: Callable[[], None]
    keys: KeysSpec | None = None


class ChangingTables(Protocol):
    """Tables that scatters change, or whose rows have keys."""

    async def current(self, found: Sequence[Metadata], request: ServedRequest | None) -> list[Metadata]:
        """Metadata with their ETags as they are now; without a request those known if they cannot be had soon."""

    async def snapshot(self, found: Metadata, first: int, last: int, request: ServedRequest) -> ContentSnapshot | None:
        """Rows `first` to `last` - 1 of a version; None if no scatter has changed it, and its rows have no keys.

        Raises shard_unavailable and overloaded.
        """

    async def keyed_snapshot(self, found: Metadata, request: ServedRequest, *, with_rows: bool) -> ContentSnapshot:
        """All keys of a version as an upload has them, and the rows behind them if `with_rows`.

        Raises shard_unavailable and overloaded.
        """

    async def keys_snapshot(self, found: Metadata, request: ServedRequest) -> ContentSnapshot:
        """All keys of a version: integers, or strings in BYTES framing. Raises shard_unavailable and overloaded."""


class ShardedContentRoute:
    """Downloads of what `store` lists, by gathers of `service`; those of scalars, which have no rows, by `scalar`."""

    def __init__(
        self, store: TensorStore, service: Service, scalar: ScalarReader, changing: ChangingTables | None
    ) -> None:
        """`changing` is given if scatters may change the tables."""
        self.store = store
        self.changing = changing
        self.service = service
        self.scalar = scalar

    async def __call__(self, context: RequestContext, name: str) -> None:
        """Answer with the rows. Raises GatherError for everything it refuses."""
        query = context.query_fields()
        metadata = self.store.metadata(name)
        if self.changing is not None:
            (metadata,) = await self.changing.current([metadata], context)
        if await is_unchanged(context, metadata.etag, BY_ACCEPT):
            return
        codec = codec_of(context, metadata.dtype)
        if metadata.keys is not None and "rows" in query:
            raise GatherError(
                "not_implemented",
                f"the rows of {name!r} have keys and no positions: a cluster places them by their keys",
                pointer="/query/rows",
                hint=f"Ask for rows by key, as in /tensors/{name}/rows?key=7, or for all with /tensors/{name}/content.",
            )
        if metadata.keys is not None and codec is SAFETENSORS_FILE:
            await self._send_with_keys(context, metadata)
            return
        is_scalar = not metadata.shape
        first, last = (0, 1) if is_scalar and "rows" not in query else row_range(query.get("rows"), metadata.shape)
        dtype, shape = DTYPES[metadata.dtype], () if is_scalar else (last - first, *metadata.shape[1:])
        row_bytes = prod(shape[1:]) * (dtype.item_size or 8)
        size = prod(shape) * dtype.item_size
        head = codec.write_head(dtype, shape, size)

        async def is_sent() -> bool:
            """Whether it was sent from snapshots, since scatters change the table."""
            if self.changing is None or context.method == "HEAD":
                return False
            snapshot = await self.changing.snapshot(metadata, first, last, context)
            if snapshot is None:
                return False
            fields = content_fields(codec, metadata.dtype, shape, snapshot.etag, metadata.version, len(head) + size)
            await send_snapshot(context, snapshot, head, fields)
            return True

        if await is_sent():
            return
        step = max(1, _CHUNK // max(row_bytes, 1))
        starts = range(first, last, step) if row_bytes and context.method != "HEAD" else range(0)
        # Before the answer begins, so that what is lost becomes an error.
        piece, held = await self._rows(context, metadata, first, min(first + step, last)) if starts else (b"", None)
        try:
            # The first scatter may have come meanwhile.
            if held is not None and await is_sent():
                return
            known = len(head) + size if dtype.item_size else None
            fields = content_fields(codec, metadata.dtype, shape, metadata.etag, metadata.version, known)
            await context.begin_answer(200, *fields)
            await context.sender({"type": "http.response.body", "body": head, "more_body": True})
            for start in starts:
                if held is None:
                    piece, held = await self._rows(context, metadata, start, min(start + step, last))
                await context.sender({"type": "http.response.body", "body": piece, "more_body": True})
                piece = b""
                held.release()
                held = None
            await context.sender({"type": "http.response.body", "body": b""})
        finally:
            if held is not None:
                held.release()

    async def _send_with_keys(self, context: RequestContext, metadata: Metadata) -> None:
        assert self.changing is not None, "a static map has no keys"
        snapshot = await self.changing.keyed_snapshot(metadata, context, with_rows=True)
        assert snapshot.keys is not None
        dtype, shape = DTYPES[metadata.dtype], metadata.shape
        head = keys_head(snapshot.keys, (dtype, shape, prod(shape) * dtype.item_size))
        size = len(head) + snapshot.size
        fields = content_fields(SAFETENSORS_FILE, metadata.dtype, shape, snapshot.etag, metadata.version, size)
        await send_snapshot(context, snapshot, head, fields)

    async def _rows(
        self, context: RequestContext, metadata: Metadata, start: int, stop: int
    ) -> tuple[bytes | memoryview, MemoryReservation]:
        """The bytes of some rows, and where they are charged until they are sent; each has the time of a request."""
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
                    # What has been sent is of another content: the caller is not to take it for whole.
                    raise GatherError("shard_unavailable", "a scatter came to the table while it was read")
            else:
                rows = await self.scalar(reference, own)
            return packed_bytes(rows, memory), memory
        except BaseException:
            memory.release()
            raise


async def send_snapshot(
    context: RequestContext, snapshot: ContentSnapshot, head: bytes, fields: Sequence[Field]
) -> None:
    """Answer with a head and what a snapshot has, and close this."""
    try:
        if await is_unchanged(context, snapshot.etag, BY_ACCEPT):
            return
        await context.begin_answer(200, *fields)
        if context.method == "HEAD":
            await context.sender({"type": "http.response.body", "body": b""})
            return
        await context.sender({"type": "http.response.body", "body": head, "more_body": True})
        async for piece in snapshot.pieces:
            await context.sender({"type": "http.response.body", "body": piece, "more_body": True})
        await context.sender({"type": "http.response.body", "body": b""})
    finally:
        snapshot.close()

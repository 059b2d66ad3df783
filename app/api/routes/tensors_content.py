"""`GET /tensors/{name}/content` and `/keys`: each download is consistent, even if the tensor changes concurrently.

Small data is copied before it is sent. For large data, and for a table with keys, a snapshot is kept until everything
has been sent. The Accept field selects the format of a download (see `Download`), both here and for tables in row
ranges.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from app.api.accept_header import accepted_types
from app.api.asgi_request import Field, RequestContext
from app.api.conditional_requests import etag_field, is_unchanged, version_field
from app.api.disk_threads import DiskThreads
from app.errors import GatherError, invalid_field
from app.formats.body_formats import RAW, SAFETENSORS_FILE, TENSORS, TensorCodec
from app.formats.safetensors.upload import keys_head
from app.formats.safetensors.write_answer import check_writable
from app.keys.key_column import KeyType
from app.store import LocalStore
from app.store.files.download_snapshots import Snapshot
from app.store.files.key_pieces import ReadKeys, framed_pieces, key_pieces, keys_spec
from app.store.files.mapped_tensor import MappedContent
from app.store.files.tensor_file import BadFile
from app.store.store_errors import damaged
from app.tensors.dtypes import DTYPES
from app.tensors.keys_spec import KeysSpec
from app.tensors.string_frames import HEAD

_FORMATS: Final = {name.encode(): codec for name, codec in TENSORS.items()}
BY_ACCEPT: Final[Field] = (b"vary", b"Accept")
"""Tells caches that the format depends on Accept; all formats have the same ETag."""


class Download(NamedTuple):
    """A download: a format, the type and shape of its array, and its ETag.

    `size` is the size of the body in bytes, or None if unknown.
    """

    codec: TensorCodec
    dtype: str
    shape: Sequence[int]
    etag: str
    version: int
    size: int | None

    async def begin(self, context: RequestContext) -> None:
        """Send the header."""
        length = [] if self.size is None else [(b"content-length", b"%d" % self.size)]
        await context.begin_answer(
            200,
            (b"content-type", self.codec.media_type.encode()),
            *length,
            etag_field(self.etag),
            version_field(self.version),
            BY_ACCEPT,
            (b"x-gathernd-dtype", self.dtype.encode()),
            (b"x-gathernd-shape", ",".join(map(str, self.shape)).encode()),
        )

    async def send(self, context: RequestContext, head: bytes, pieces: AsyncIterator[bytes] | None = None) -> None:
        """Send the header and, unless the method is HEAD, the body: `head` and then `pieces`."""
        await self.begin(context)
        if context.method != "HEAD":
            await context.send_piece(head)
            if pieces is not None:
                async for piece in pieces:
                    await context.send_piece(piece)
        await context.end_answer()


def codec_for_rows(context: RequestContext, dtype: str) -> TensorCodec:
    """Return the format that Accept prefers among those that support `dtype`, or its first choice if there are none."""
    formats = _accepted_codecs(context)
    return next((codec for codec in formats if dtype in codec.dtypes), formats[0])


def codec_for_keys(context: RequestContext, dtype: str) -> TensorCodec:
    """Return the format that Accept prefers among those that support keys of `dtype`.

    safetensors supports string keys, as two tensors.
    """
    formats = _accepted_codecs(context)
    return next((codec for codec in formats if codec is SAFETENSORS_FILE or dtype in codec.dtypes), formats[0])


def no_keys(name: str) -> GatherError:
    """Return the no_keys error for tensor `name`."""
    return GatherError("no_keys", f"{name!r} has no keys", hint="Upload keys with PUT, or request /content.")


def _accepted_codecs(context: RequestContext) -> list[TensorCodec]:
    """Return the formats that Accept allows, most preferred first."""
    names = accepted_types(context.headers.get(b"accept", b""), _FORMATS, RAW.media_type.encode())
    return [_FORMATS[name] for name in names]


_ROWS: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")
_CHUNK: Final = 1 << 20
"""Number of bytes in one piece of a download."""
_WHOLE: Final = 8 * _CHUNK
"""Data of up to this many bytes is copied before it is sent, so that later scatters do not affect it."""
_COPIES: Final = 20
"""Number of attempts to copy small data while scatters change it; after that, the copy locks out writers."""


class _Body(NamedTuple):
    """The body of a download: its head, the remaining pieces, and their size."""

    codec: TensorCodec
    dtype: str
    shape: tuple[int, ...]
    head: bytes
    size: int
    pieces: Iterator[bytes]


class Downloads:
    """Sends the data and keys of the tensors in `store`."""

    def __init__(self, store: LocalStore, threads: DiskThreads) -> None:
        self.store = store
        self.threads = threads

    async def content(self, context: RequestContext, name: str) -> None:
        """`GET /tensors/{name}/content`. Raises GatherError for every refusal."""
        text = context.query_fields().get("rows")
        content = await self.threads.look_up(name, lambda: self.store.content(name))
        resident, about = content.resident(), content.description
        etag = resident.etag
        if await is_unchanged(context, etag, BY_ACCEPT):
            return
        codec = codec_for_rows(context, about.dtype)
        shape, begin, end = _shape_and_span(content, resident.tensor.shape, text)
        if resident.keys is not None:
            await self._send_snapshot(
                context, name, content, etag, lambda one: self._table_body(one, name, content, codec, text)
            )
            return
        head = codec.write_head(DTYPES[about.dtype], shape, end - begin)
        download = Download(codec, about.dtype, shape, etag, content.data_version, len(head) + end - begin)
        if context.method == "HEAD":
            await download.send(context, head)
            return
        if end - begin > _WHOLE:

            async def rows(snapshot: Snapshot) -> _Body:
                return _Body(codec, about.dtype, shape, head, end - begin, _row_pieces(snapshot, begin, end))

            await self._send_snapshot(context, name, content, etag, rows, _WHOLE)
            return
        context.memory.charge(end - begin)
        read, body = await self.threads.read(name, lambda: _copy(content, begin, end))
        if body is None:
            read, body = await self.threads.change(about.name, lambda: _copy_without_writers(content, begin, end))
        assert body is not None
        if read != etag and await is_unchanged(context, read, BY_ACCEPT):
            return
        await download._replace(etag=read).send(context, head + body)

    async def keys(self, context: RequestContext, name: str) -> None:
        """`GET /tensors/{name}/keys`. Raises GatherError for every refusal."""
        context.query_fields()
        content = await self.threads.look_up(name, lambda: self.store.content(name))
        if content.keys is None:
            raise no_keys(name)
        etag, dtype = content.resident().etag, content.keys.layout.dtype
        if await is_unchanged(context, etag, BY_ACCEPT):
            return

        async def body(snapshot: Snapshot) -> _Body:
            spec = await self._keys_spec(name, snapshot, dtype, 0, snapshot.shape[0])
            codec = codec_for_keys(context, dtype)
            return _Body(codec, dtype, (spec.count,), *_keys_body(codec, spec, snapshot.keys))

        await self._send_snapshot(context, name, content, etag, body)

    async def _send_snapshot(
        self,
        context: RequestContext,
        name: str,
        content: MappedContent,
        etag: str,
        body_of: Callable[[Snapshot], Awaitable[_Body]],
        charged: int = _CHUNK,
    ) -> None:
        """Respond with the body that `body_of` reads from a snapshot.

        Responds with 304 if the snapshot's ETag differs from `etag` and the caller already has the snapshot's version.
        Charges at most `charged` bytes of the body to the request's memory.
        """
        snapshot = await self.threads.change(content.description.name, lambda: self.store.snapshot(content))
        try:
            if snapshot.etag != etag and await is_unchanged(context, snapshot.etag, BY_ACCEPT):
                return
            codec, dtype, shape, head, size, pieces = await body_of(snapshot)
            if context.method != "HEAD":
                context.memory.charge(min(size, charged))
            download = Download(codec, dtype, shape, snapshot.etag, content.data_version, len(head) + size)
            await download.send(context, head, self._read_in_threads(name, pieces))
        finally:
            self.threads.streams.submit(snapshot.close)

    async def _table_body(
        self, snapshot: Snapshot, name: str, content: MappedContent, codec: TensorCodec, text: str | None
    ) -> _Body:
        """Return the rows of a table with keys, preceded by the keys if the format can hold both."""
        dtype = DTYPES[content.description.dtype]
        shape, begin, end = _shape_and_span(content, snapshot.shape, text)
        rows = _row_pieces(snapshot, begin, end)
        if codec is not SAFETENSORS_FILE:
            return _Body(codec, dtype.name, shape, codec.write_head(dtype, shape, end - begin), end - begin, rows)
        check_writable(dtype, "/accept")
        assert content.keys is not None
        of_keys = content.keys.layout.dtype
        first, last = row_range(text, snapshot.shape)
        spec = await self._keys_spec(name, snapshot, of_keys, first, last)
        head = keys_head(spec, (dtype, shape, end - begin))
        pieces = chain(key_pieces(snapshot.keys, of_keys, first, last), rows)
        return _Body(codec, dtype.name, shape, head, spec.size + end - begin, pieces)

    async def _keys_spec(self, name: str, snapshot: Snapshot, dtype: KeyType, first: int, last: int) -> KeysSpec:
        """Return the spec of the keys for rows `first` to `last` - 1 of tensor `name`. Raises tensor_damaged."""
        try:
            return await self.threads.read(name, lambda: keys_spec(snapshot.keys, dtype, first, last))
        except BadFile as problem:
            raise damaged(name, str(problem)) from None

    async def _read_in_threads(self, name: str, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the non-empty pieces of tensor `name`, each read by a thread."""
        while piece := await self.threads.read(name, partial(next, pieces, b"")):
            yield piece


def _row_pieces(snapshot: Snapshot, begin: int, end: int) -> Iterator[bytes]:
    return (snapshot.read(place, min(place + _CHUNK, end)) for place in range(begin, end, _CHUNK))


def _keys_body(codec: TensorCodec, spec: KeysSpec, read: ReadKeys) -> tuple[bytes, int, Iterator[bytes]]:
    """Return the head of the body, and the size and pieces of the rest. Raises unsupported_dtype for strings in npy."""
    pieces = key_pieces(read, spec.dtype, 0, spec.count)
    if codec is SAFETENSORS_FILE:
        return keys_head(spec), spec.size, pieces
    head = codec.write_head(DTYPES[spec.dtype], (spec.count,), spec.size)
    if codec is RAW and spec.dtype == "string":
        frames = (frames.tobytes() for frames in framed_pieces(read, 0, spec.count))
        return head, spec.string_bytes + HEAD * spec.count, frames
    return head, spec.size, pieces


def _shape_and_span(
    content: MappedContent, shape: tuple[int, ...], text: str | None
) -> tuple[tuple[int, ...], int, int]:
    """Return the shape of the requested rows, and the start and end offsets of their bytes.

    `shape` is that of the whole tensor. Raises range_not_satisfiable.
    """
    if text is None and content.keys is None:
        return shape, 0, content.description.size
    first, last = row_range(text, shape)
    begin, end = content.row_span(first, last)
    return (last - first, *shape[1:]), begin, end


def row_range(text: str | None, shape: tuple[int, ...]) -> tuple[int, int]:
    """Parse the requested row range. Returns the first row and the last row + 1; selects all rows if `text` is None.

    Raises invalid_field and range_not_satisfiable.
    """
    if text is None:
        return 0, shape[0]
    match = _ROWS.fullmatch(text)
    if match is None:
        hint = f"Write rows={_suggested_rows(text)}, the first row and the one after the last."
        raise invalid_field("/query/rows", "rows must be a:b, as in rows=0:100", hint)
    first, last = int(match[1]), int(match[2])
    if not shape or not first <= last <= shape[0]:
        rows = f"{shape[0]} rows" if shape else "no rows, as it is a scalar"
        raise GatherError(
            "range_not_satisfiable",
            f"rows {first}:{last} were requested; the tensor has {rows}",
            pointer="/query/rows",
            hint=_hint_for_rows(first, last, shape),
        )
    return first, last


def _suggested_rows(text: str) -> str:
    """Build a valid `rows` text from the first numbers of an invalid one."""
    numbers = [int(number) for number in re.findall(r"[0-9]{1,15}", text)[:2]]
    first, last = (*numbers, 0, 100)[:2] if numbers else (0, 100)
    return f"{first}:{last}" if len(numbers) > 1 else f"{first}:{first + 1}"


def _hint_for_rows(first: int, last: int, shape: tuple[int, ...]) -> str:
    if not shape:
        return "Leave out 'rows', since the tensor is a scalar."
    if first > last:
        first, last = last, first
    last = min(last, shape[0])
    return f"Request rows={min(first, last)}:{last}, since the tensor has {shape[0]} rows."


def _copy(content: MappedContent, begin: int, end: int) -> tuple[str, bytes | None]:
    """Copy bytes `begin` to `end`.

    Returns their ETag and the bytes, or their ETag and None if scatters kept changing them.
    """
    for _ in range(_COPIES):
        resident = content.resident()
        piece = content.read(begin, end)
        if resident.is_consistent:
            return resident.etag, piece
    return resident.etag, None


def _copy_without_writers(content: MappedContent, begin: int, end: int) -> tuple[str, bytes]:
    """Copy bytes `begin` to `end` while writers are locked out. Returns their ETag and the bytes. Blocks."""
    with content.exclude_writers():
        return content.resident().etag, content.read(begin, end)

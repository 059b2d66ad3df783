"""`GET /tensors/{name}/content`: a tensor or some of its rows, all of one content however many scatters come meanwhile.

A small content is copied before it is sent; of a large one a snapshot is kept until it has been sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from app.api.accept_header import admitted
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
from app.store.files.key_pieces import key_pieces, keys_spec
from app.store.files.mapped_tensor import MappedContent
from app.store.files.tensor_file import BadFile
from app.store.store_errors import damaged
from app.tensors.dtypes import DTYPES
from app.tensors.keys_spec import KeysSpec

_FORMATS: Final = {name.encode(): codec for name, codec in TENSORS.items()}
_RAW: Final = RAW.media_type.encode()
BY_ACCEPT: Final[Field] = (b"vary", b"Accept")
"""Tells caches that another Accept may get another format; all of them have one ETag, that of the content."""
_ROWS: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")
_CHUNK: Final = 1 << 20
_WHOLE: Final = 8 * _CHUNK
"""Contents of up to this many bytes are copied before they are sent, so that a scatter meanwhile does not matter."""
_COPIES: Final = 20
"""So often a small content is copied anew where scatters change it meanwhile; then they wait."""


class ContentRoute:
    """Downloads."""

    def __init__(self, store: LocalStore, threads: DiskThreads) -> None:
        self.store = store
        self.threads = threads

    async def __call__(self, context: RequestContext, name: str) -> None:
        """Answer with the content, from its head to its last byte. Raises GatherError for everything it refuses."""
        fields = context.query_fields()
        content = await self.threads.look_up(name, lambda: self.store.content(name))
        lock = content.description.name
        resident = content.resident()
        etag = resident.etag
        if await is_unchanged(context, etag, BY_ACCEPT):
            return
        codec = codec_of(context, content.description.dtype)
        shape, begin, end = _rows(content, resident.tensor.shape, fields.get("rows"))

        def fields_of(etag: str) -> list[Field]:
            return content_fields(codec, content.description.dtype, shape, etag, content.data_version, size)

        if resident.keys is not None:
            await self._send_table(context, name, content, codec, etag)
            return
        head = codec.write_head(DTYPES[content.description.dtype], shape, end - begin)
        size = len(head) + end - begin
        if context.method == "HEAD":
            await context.begin_answer(200, *fields_of(etag))
            await context.sender({"type": "http.response.body", "body": b""})
            return
        context.memory.charge(min(end - begin, _WHOLE))
        if end - begin <= _WHOLE:
            read, body = await self.threads.read(name, lambda: _copy(content, begin, end))
            if body is None:
                read, body = await self.threads.change(lock, lambda: _copy_held(content, begin, end))
            if read != etag and await is_unchanged(context, read, BY_ACCEPT):
                return
            await context.begin_answer(200, *fields_of(read))
            assert body is not None
            await context.sender({"type": "http.response.body", "body": head + body})
            return
        snapshot = await self.threads.change(lock, lambda: self.store.snapshot(content))
        try:
            if snapshot.etag != etag and await is_unchanged(context, snapshot.etag, BY_ACCEPT):
                return
            await context.begin_answer(200, *fields_of(snapshot.etag))
            await context.sender({"type": "http.response.body", "body": head, "more_body": True})
            await self._send_rows(context, name, snapshot, begin, end)
        finally:
            self.threads.streams.submit(snapshot.close)

    async def _send_rows(self, context: RequestContext, name: str, snapshot: Snapshot, begin: int, end: int) -> None:
        """Send bytes of the items, which are the last ones of the body."""
        for place in range(begin, end, _CHUNK):
            last = min(place + _CHUNK, end)
            piece = await self.threads.read(name, partial(snapshot.read, place, last))
            await context.sender({"type": "http.response.body", "body": piece, "more_body": last < end})
        if begin == end:
            await context.sender({"type": "http.response.body", "body": b""})

    async def _send_table(
        self, context: RequestContext, name: str, content: MappedContent, codec: TensorCodec, etag: str
    ) -> None:
        """Answer with rows of a table with keys, and before them the keys if the format carries both."""
        dtype, text = DTYPES[content.description.dtype], context.query_fields().get("rows")
        assert content.keys is not None
        of_keys = content.keys.layout.dtype
        snapshot = await self.threads.change(content.description.name, lambda: self.store.snapshot(content))
        try:
            if snapshot.etag != etag and await is_unchanged(context, snapshot.etag, BY_ACCEPT):
                return
            shape, begin, end = _rows(content, snapshot.shape, text)
            pieces: Iterator[bytes] = iter(())
            keys_size = 0
            if codec is SAFETENSORS_FILE:
                check_writable(dtype, "/accept")
                first, last = row_range(text, snapshot.shape)
                spec = await spec_sent(self.threads, name, snapshot, of_keys, first, last)
                head, keys_size = keys_head(spec, (dtype, shape, end - begin)), spec.size
                pieces = key_pieces(snapshot.keys, of_keys, first, last)
            else:
                head = codec.write_head(dtype, shape, end - begin)
            size = len(head) + keys_size + end - begin
            fields = content_fields(codec, dtype.name, shape, snapshot.etag, content.data_version, size)
            await context.begin_answer(200, *fields)
            if context.method == "HEAD":
                await context.sender({"type": "http.response.body", "body": b""})
                return
            context.memory.charge(_CHUNK)
            await context.sender({"type": "http.response.body", "body": head, "more_body": True})
            await send_pieces(context, self.threads, name, pieces)
            await self._send_rows(context, name, snapshot, begin, end)
        finally:
            self.threads.streams.submit(snapshot.close)


async def send_pieces(context: RequestContext, threads: DiskThreads, name: str, pieces: Iterator[bytes]) -> None:
    """Send pieces of tensor `name`, none of which is empty and which are not the last ones of the body."""
    while piece := await threads.read(name, partial(next, pieces, b"")):
        await context.sender({"type": "http.response.body", "body": piece, "more_body": True})


async def spec_sent(
    threads: DiskThreads, name: str, snapshot: Snapshot, dtype: KeyType, first: int, last: int
) -> KeysSpec:
    """What the keys of rows `first` to `last` - 1 of tensor `name` are, before they are sent. Raises tensor_damaged."""
    try:
        return await threads.read(name, lambda: keys_spec(snapshot.keys, dtype, first, last))
    except BadFile as problem:
        raise damaged(name, str(problem)) from None


def content_fields(
    codec: TensorCodec, dtype: str, shape: Sequence[int], etag: str, version: int, size: int | None
) -> list[Field]:
    """The header fields of a download of `size` bytes; None if the size is not known before."""
    length = [] if size is None else [(b"content-length", b"%d" % size)]
    return [
        (b"content-type", codec.media_type.encode()),
        *length,
        etag_field(etag),
        version_field(version),
        BY_ACCEPT,
        (b"x-gathernd-dtype", dtype.encode()),
        (b"x-gathernd-shape", ",".join(map(str, shape)).encode()),
    ]


def codec_of(context: RequestContext, dtype: str) -> TensorCodec:
    """The format of a download, by Accept: the best of those that carry `dtype`, where one does."""
    formats = admitted_codecs(context)
    return next((codec for codec in formats if dtype in codec.dtypes), formats[0])


def admitted_codecs(context: RequestContext) -> list[TensorCodec]:
    """The formats of a download that Accept admits, the best first."""
    return [_FORMATS[name] for name in admitted(context.headers.get(b"accept", b""), _FORMATS, _RAW)]


def _rows(content: MappedContent, shape: tuple[int, ...], text: str | None) -> tuple[tuple[int, ...], int, int]:
    """The shape of the rows asked for, and where their bytes begin and end, of a tensor that has this shape now.

    Raises range_not_satisfiable.
    """
    if text is None and content.keys is None:
        return shape, 0, content.description.size
    first, last = row_range(text, shape)
    begin, end = content.row_span(first, last)
    return (last - first, *shape[1:]), begin, end


def row_range(text: str | None, shape: tuple[int, ...]) -> tuple[int, int]:
    """The first row and the one behind the last that the query asks for, of a tensor of `shape`; all without a text.

    Raises invalid_field and range_not_satisfiable.
    """
    if text is None:
        return 0, shape[0]
    match = _ROWS.fullmatch(text)
    if match is None:
        hint = f"Write rows={_rows_like(text)}, the first row and the one behind the last."
        raise invalid_field("/query/rows", "rows must be a:b, as in rows=0:100", hint)
    first, last = int(match[1]), int(match[2])
    if not shape or not first <= last <= shape[0]:
        rows = f"{shape[0]} rows" if shape else "no rows, as it is a scalar"
        raise GatherError(
            "range_not_satisfiable",
            f"rows {first}:{last} are asked for; the tensor has {rows}",
            pointer="/query/rows",
            hint=_hint_for_rows(first, last, shape),
        )
    return first, last


def _rows_like(text: str) -> str:
    """Rows as they are written, from the first numbers of a text, which is none."""
    numbers = [int(number) for number in re.findall(r"[0-9]{1,15}", text)[:2]]
    first, last = (*numbers, 0, 100)[:2] if numbers else (0, 100)
    return f"{first}:{last}" if len(numbers) > 1 else f"{first}:{first + 1}"


def _hint_for_rows(first: int, last: int, shape: tuple[int, ...]) -> str:
    if not shape:
        return "Leave out 'rows', since the tensor is a scalar."
    if first > last:
        first, last = last, first
    last = min(last, shape[0])
    return f"Ask for rows={min(first, last)}:{last}, since the tensor has {shape[0]} rows."


def _copy(content: MappedContent, begin: int, end: int) -> tuple[str, bytes | None]:
    """The bytes, None where scatters changed them again and again, and the ETag that names them."""
    for _ in range(_COPIES):
        resident = content.resident()
        piece = content.read(begin, end)
        if resident.is_consistent:
            return resident.etag, piece
    return resident.etag, None


def _copy_held(content: MappedContent, begin: int, end: int) -> tuple[str, bytes]:
    """The bytes and the ETag that names them, with writers kept out; blocks."""
    with content.exclude_writers():
        return content.resident().etag, content.read(begin, end)

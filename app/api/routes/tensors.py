"""The routes of resident tensors, `/tensors` and what is below: upload, metadata, content, removal, scatter.

They stand beside the gathers in front of FastAPI, since bodies stream here. All that touches the disk runs on threads
of its own: neither the event loop nor the pool of the kernels ever waits for a disk.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import orjson

from app.api.accept_header import preferred_by_name
from app.api.asgi_request import Handler, RequestContext
from app.api.conditional_requests import read_conditions
from app.api.disk_threads import DiskThreads
from app.api.request_body import inflate, read_body
from app.api.routes.gather import check_json_type
from app.api.routes.health import Readiness
from app.api.routes.tensors_scatter import Scattering, read_key, read_request
from app.api.upload_receiver import HELD, Receiver, receive, upload_too_large
from app.errors import GatherError
from app.service import Service
from app.store import Conditions, LocalStore, Metadata
from app.store.mapped_tensor import MappedContent
from app.store.store_errors import storage_errors
from app.store.upload import Upload, check_shape
from app.tensors.dtypes import DTYPES
from app.tensors.scatter_call import ScatterCall
from app.tensors.tensor_name import check_name, check_new_name
from app.wire import safetensors
from app.wire.body_formats import MEDIA_TYPES, RAW, SCATTERS, TENSORS, TensorCodec, start_of
from app.wire.npy import Start

Field = tuple[bytes, bytes]
_JSON: Final = b"application/json"
_FORMATS: Final = {name.encode(): codec for name, codec in TENSORS.items()}
_ROWS: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")
_LIMIT: Final = re.compile(r"[0-9]{1,9}")
_CHUNK: Final = 1 << 20
_WHOLE: Final = 8 * _CHUNK
"""Contents of up to this many bytes are copied before they are sent, so that a scatter meanwhile does not matter."""
MAX_LIST: Final = 1000


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The largest upload, and the largest scatter in JSON and in safetensors, in bytes."""

    upload: int
    json: int
    body: int


class TensorsRoute:
    """Everything below `/tensors`."""

    def __init__(
        self, store: LocalStore, service: Service, limits: BodyLimits, threads: DiskThreads, readiness: Readiness
    ) -> None:
        self.store = store
        self.service = service
        self.limits = limits
        self.threads = threads
        self.readiness = readiness
        self._scattering: set[asyncio.Task[str]] = set()

    def handlers(self) -> dict[str, Handler]:
        """The handler of each operation."""
        return {
            "listTensors": self._list,
            "getTensor": _of_name(self._metadata),
            "putTensor": _of_name(self._put),
            "deleteTensor": _of_name(self._delete),
            "tensorContent": _of_name(self._content),
            "scatterTensor": _of_name(self._scatter),
        }

    async def _list(self, context: RequestContext) -> None:
        fields = safetensors.read_query(context.query, ("limit", "after"))
        limit = fields.get("limit", "100")
        if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= MAX_LIST:
            raise GatherError("invalid_field", f"limit must be from 1 to {MAX_LIST}", pointer="/query/limit")
        found, following = await self.threads.look_up("", lambda: self.store.page(int(limit), fields.get("after")))
        body: dict[str, Any] = {"tensors": [_described(metadata) for metadata in found], "next": following}
        await context.send(200, _JSON, orjson.dumps(body))

    async def _metadata(self, context: RequestContext, name: str) -> None:
        safetensors.read_query(context.query, ())
        metadata = await self.threads.look_up(name, lambda: self.store.metadata(name))
        if await self._unchanged(context, metadata.etag):
            return
        await context.send(200, _JSON, orjson.dumps(_described(metadata)), _etag(metadata.etag))

    async def _unchanged(self, context: RequestContext, etag: str) -> bool:
        """Judge the conditions of a GET; True once 304 has been sent."""
        conditions = read_conditions(context.headers)
        Conditions(match=conditions.match).check(etag)
        if conditions.none_match is not None and (etag in conditions.none_match or conditions.none_match == ("*",)):
            await context.send_empty(304, _etag(etag))
            return True
        return False

    async def _put(self, context: RequestContext, name: str) -> None:
        check_new_name(name)
        fields = safetensors.read_query(context.query, ("dtype", "shape", "prefault", "lock"))
        options = {option: _flag(fields, option) for option in ("prefault", "lock")}
        conditions = read_conditions(context.headers)
        codec = _codec_of(context.headers.get(b"content-type"))
        declared = context.content_length()
        if declared is not None and declared > self.limits.upload:
            raise upload_too_large(self.limits.upload)
        if conditions != Conditions():
            # Judged again when the upload is committed; here it saves the sending.
            conditions.check(await self.threads.look_up(name, lambda: self.store.etag(name)))
        context.reservation.charge(HELD)
        encoding = context.headers.get(b"content-encoding")

        def begin(start: Start) -> Upload:
            check_shape(start.dtype, start.shape, self.service.limits, start.shape_pointer)
            if declared is not None and encoding is None and start.dtype.kind != "string":
                check_count(start, declared)
            return self.store.upload(
                start.dtype, start.shape, name=name, swap=start.swap, fortran=start.fortran, **options
            )

        receiver = Receiver(
            lambda head, whole: start_of(codec, head, fields, whole=whole, charge=context.reservation.charge),
            begin,
            self.limits.upload,
            encoding=encoding,
            digest=context.headers.get(b"content-digest"),
        )
        with storage_errors():
            upload = await receive(context, receiver, self.threads.streams)
        metadata, created = await self.threads.change(name, lambda: self.store.put(name, upload, conditions))
        where: tuple[Field, ...] = ((b"location", context.path.encode()),) if created else ()
        body = orjson.dumps(_described(metadata))
        await context.send(201 if created else 200, _JSON, body, _etag(metadata.etag), *where)

    async def _delete(self, context: RequestContext, name: str) -> None:
        safetensors.read_query(context.query, ())
        conditions = read_conditions(context.headers)
        await self.threads.change(name, lambda: self.store.delete(name, conditions))
        await context.send_empty(204)

    async def _content(self, context: RequestContext, name: str) -> None:
        fields = safetensors.read_query(context.query, ("rows",))
        codec = _FORMATS[preferred_by_name(context.headers.get(b"accept", b""), _FORMATS, RAW.media_type.encode())]
        content = await self.threads.look_up(name, lambda: self.store.content(name))
        resident = content.resident()
        etag = resident.etag
        if await self._unchanged(context, etag):
            return
        shape, begin, end = _rows(content, fields.get("rows"))
        head = codec.write_head(DTYPES[content.description.dtype], shape, end - begin)
        size = len(head) + end - begin

        def fields_of(etag: str) -> tuple[Field, ...]:
            return (
                (b"content-type", codec.media_type.encode()),
                (b"content-length", b"%d" % size),
                (b"x-request-id", context.request_id.encode()),
                _etag(etag),
                (b"x-gathernd-dtype", content.description.dtype.encode()),
                (b"x-gathernd-shape", ",".join(map(str, shape)).encode()),
            )

        if context.method == "HEAD":
            await _start(context, fields_of(etag))
            await context.sender({"type": "http.response.body", "body": b""})
            return
        context.reservation.charge(min(end - begin, _WHOLE))
        if end - begin <= _WHOLE:
            read, body = await self.threads.read(name, lambda: _copy(content, begin, end))
            if body is None:
                read, body = await self.threads.change(name, lambda: _copy_held(content, begin, end))
            if read != etag and await self._unchanged(context, read):
                return
            await _start(context, fields_of(read))
            assert body is not None
            await context.sender({"type": "http.response.body", "body": head + body})
            return
        snapshot = await self.threads.change(name, lambda: self.store.snapshot(content))
        try:
            if snapshot.etag != etag and await self._unchanged(context, snapshot.etag):
                return
            await _start(context, fields_of(snapshot.etag))
            await context.sender({"type": "http.response.body", "body": head, "more_body": True})
            for place in range(begin, end, _CHUNK):
                last = min(place + _CHUNK, end)
                piece = await self.threads.read(name, partial(snapshot.read, place, last))
                await context.sender({"type": "http.response.body", "body": piece, "more_body": last < end})
        finally:
            self.threads.streams.submit(snapshot.close)

    async def _scatter(self, context: RequestContext, name: str) -> None:
        content_type = context.headers.get(b"content-type", _JSON)
        codec = SCATTERS.get(content_type.partition(b";")[0].strip().lower())
        if codec is None or codec.media_type == _JSON:
            check_json_type(content_type)
            codec = SCATTERS[_JSON]
        codec.check_query(context.query)
        if codec.compiled and self.readiness.waiting_for:
            raise self.readiness.error()
        conditions = read_conditions(context.headers)
        key = read_key(context.headers.get(b"idempotency-key"))
        limit = self.limits.body if codec.binary else self.limits.json
        body = await read_body(context, limit)
        encoding = context.headers.get(b"content-encoding")
        if encoding is not None:
            raw = body
            body = await self.threads.change(name, lambda: inflate(raw, encoding, limit, context.reservation))
        read = partial(
            read_request,
            body,
            context.query,
            codec=codec,
            key=key,
            limits=self.service.limits,
            charge=context.reservation.charge,
        )
        etag = await self._scattered(name, read, conditions, key)
        await context.send(200, _JSON, orjson.dumps({"name": name, "etag": etag}), _etag(etag))

    async def _scattered(
        self, name: str, read: Callable[[], tuple[ScatterCall, str]], conditions: Conditions, key: str | None
    ) -> str:
        """The ETag after a scatter. While others of the tensor are carried out it waits without a thread."""
        loop = asyncio.get_running_loop()
        turn = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(turn.set)

        def begin() -> tuple[Scattering, str | None]:
            call, digest = read()
            scattering = Scattering(self.store, name, call, conditions, key, digest, wake)
            return scattering, scattering.go_on()

        async def go_on(scattering: Scattering) -> str:
            while True:
                await turn.wait()
                turn.clear()
                etag = scattering.settled() or await self.threads.change(name, scattering.go_on)
                if etag is not None:
                    return etag

        scattering, etag = await self.threads.change(name, begin)
        if etag is None:
            # Others wait for what this one is to carry on, also when its own request is cancelled.
            task = loop.create_task(go_on(scattering))
            self._scattering.add(task)
            task.add_done_callback(self._scattering.discard)
            etag = await asyncio.shield(task)
        return etag


def _of_name(handler: Callable[[RequestContext, str], Awaitable[None]]) -> Handler:
    """`handler` with the name in the path, checked."""

    async def handle(context: RequestContext) -> None:
        (name,) = context.parameters
        check_name(name)
        await handler(context, name)

    return handle


def check_count(start: Start, declared: int) -> None:
    """Refuse at once an upload whose declared length cannot be right. Raises element_count_mismatch."""
    wanted = start.dtype.item_size
    for size in start.shape:
        wanted = min(wanted * size, 2**70)
    if 0 in start.shape:
        wanted = 0
    if declared != start.offset + wanted:
        raise GatherError(
            "element_count_mismatch",
            f"{declared - start.offset} bytes of items are announced, which is not what shape "
            f"{list(start.shape)} of {start.dtype.name} asks for",
            pointer="/body",
        )


def _etag(etag: str) -> Field:
    return b"etag", etag.encode()


def _flag(fields: dict[str, str], name: str) -> bool:
    value = fields.get(name, "false")
    if value not in ("true", "false"):
        raise GatherError("invalid_field", f"{name} must be true or false", pointer=f"/query/{name}")
    return value == "true"


def _codec_of(field: bytes | None) -> TensorCodec | None:
    """The format of an upload's media type, None where it does not say one. Raises unsupported_media_type."""
    kind = (field or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind and kind not in TENSORS:
        raise GatherError("unsupported_media_type", f"{kind!r} is not read here; {MEDIA_TYPES} are")
    return TENSORS.get(kind)


def _rows(content: MappedContent, text: str | None) -> tuple[tuple[int, ...], int, int]:
    """The shape of the rows asked for, and where their bytes begin and end. Raises range_not_satisfiable."""
    about = content.description
    if text is None:
        return about.shape, 0, about.size
    match = _ROWS.fullmatch(text)
    if match is None:
        raise GatherError("invalid_field", "rows must be a:b, as in rows=0:100", pointer="/query/rows")
    first, last = int(match[1]), int(match[2])
    if not about.shape or not first <= last <= about.shape[0]:
        rows = f"{about.shape[0]} rows" if about.shape else "no rows, as it is a scalar"
        raise GatherError(
            "range_not_satisfiable", f"rows {first}:{last} are asked for; the tensor has {rows}", pointer="/query/rows"
        )
    begin, end = content.row_span(first, last)
    return (last - first, *about.shape[1:]), begin, end


def _copy(content: MappedContent, begin: int, end: int) -> tuple[str, bytes | None]:
    """The bytes, None where scatters changed them again and again, and the ETag that names them."""
    for _ in range(20):
        resident = content.resident()
        piece = content.read(begin, end)
        if resident.is_consistent:
            return resident.etag, piece
    return resident.etag, None


def _copy_held(content: MappedContent, begin: int, end: int) -> tuple[str, bytes]:
    """The bytes and the ETag that names them, with writers kept out; blocks."""
    with content.exclude_writers():
        return content.resident().etag, content.read(begin, end)


async def _start(context: RequestContext, headers: tuple[Field, ...]) -> None:
    context.started = True
    context.status = 200
    timing = (b"server-timing", context.timings.header_field())
    await context.sender({"type": "http.response.start", "status": 200, "headers": [*headers, timing]})


def _described(metadata: Metadata) -> dict[str, Any]:
    return {
        "name": metadata.name,
        "dtype": metadata.dtype,
        "shape": metadata.shape,
        "bytes": metadata.size,
        "etag": metadata.etag,
        "sha256": metadata.sha256,
        "created": _time(metadata.created),
        "modified": _time(metadata.modified),
        "prefault": metadata.prefault,
        "lock": metadata.lock,
        **({"damaged": True} if metadata.damaged else {}),
    }


def _time(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 1000 / 1e6, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

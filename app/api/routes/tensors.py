"""Handlers for resident tensors: list, read metadata, upload and remove.

Only separate threads wait for the disk; the event loop and the kernels' thread pool never do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from unicodedata import category

import orjson

from app.api.asgi_request import Field, Handler, RequestContext
from app.api.conditional_requests import etag_field, is_unchanged, read_conditions, version_field
from app.api.disk_threads import DiskThreads
from app.api.error_responses import JSON
from app.api.request_body import check_json_type, read_json, too_large
from app.api.route_rows.tensors import MAX_KEEP, MAX_LIST, MAX_NOTE_BYTES, USUAL_LIST
from app.api.upload_receiver import MEMORY_BYTES, Opener, UploadReceiver, receive
from app.errors import GatherError, invalid_field
from app.formats.body_formats import MEDIA_TYPES, NPY, TENSORS, WHOLE_FILE_HINT, TensorCodec, start_of
from app.formats.npy import Start
from app.near_name import near_name, replacement_text, shorten
from app.requests.schemas.management_requests import MOST_REPLICAS, asked_replicas
from app.store import Conditions, Metadata
from app.store.files.write_uploaded_tensor import Upload, UploadSpec, check_shape
from app.store.store_errors import storage_errors
from app.store.tensor_metadata import RangeMetadata
from app.store.tensor_store_interface import TensorStore
from app.telemetry.served_request import ServedRequest
from app.telemetry.tensor_change_log import Change
from app.tensors.keys_spec import KeysSpec
from app.tensors.little_endian_items import packed_size_hint
from app.tensors.shape_limits import Limits
from app.tensors.tensor_name import check_new_name, check_reference, split_reference

_AT_CAPACITY: Final = "/query/capacity"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_FORM: Final = "application/x-www-form-urlencoded"
"""Curl's default content type, which does not identify the format."""

CurrentEtags: TypeAlias = "Callable[[Sequence[Metadata], ServedRequest | None], Awaitable[list[Metadata]]]"
"""Adds the current ETags to metadata.

If no request is given and fetching the current ETags takes long, adds the last known ones instead.
"""


async def keep_stored_metadata(found: Sequence[Metadata], request: ServedRequest | None) -> list[Metadata]:
    """Return the metadata unchanged, for a store that tracks the current ETags itself."""
    del request
    return list(found)


class TensorsRoute:
    """`/tensors`, `/tensors/{name}`, and the settings of a tensor.

    `max_upload_bytes` limits the size of an upload both as sent and after decompression.
    """

    def __init__(
        self,
        store: TensorStore,
        limits: Limits,
        threads: DiskThreads,
        max_upload_bytes: int,
        current: CurrentEtags,
    ) -> None:
        """`current` is `keep_stored_metadata` if `store` tracks the tensors' current ETags itself."""
        self.store = store
        self.current = current
        self.limits = limits
        self.threads = threads
        self.max_upload_bytes = max_upload_bytes

    async def list(self, context: RequestContext) -> None:
        """`GET /tensors`."""
        limit, after = read_page(context)
        found, following = await self.threads.look_up("", lambda: self.store.page(limit, after))
        found = await self.current(found, None)
        body: dict[str, Any] = {"tensors": [metadata_body(metadata) for metadata in found], "next": following}
        await context.send(200, JSON, orjson.dumps(body))

    async def metadata(self, context: RequestContext, name: str) -> None:
        """`GET /tensors/{name}`."""
        context.query_fields()
        metadata = await self.threads.look_up(name, lambda: self.store.metadata(name))
        (metadata,) = await self.current([metadata], context)
        if not await is_unchanged(context, metadata.etag):
            await _send(context, 200, metadata)

    async def put(self, context: RequestContext, name: str) -> None:
        """`PUT /tensors/{name}`."""
        check_new_name(name)
        fields = context.query_fields()
        keep, replicas = read_keep(fields), read_replicas(fields, self.store)
        capacity = read_capacity(fields.get("capacity"))
        prefault, lock = read_flag(fields, "prefault"), read_flag(fields, "lock")
        note = read_note(fields.get("note"), "/query/note")
        conditions = read_conditions(context.headers)
        codec = _codec_of(context.headers.get(b"content-type"))
        declared = self._declared_length(context)
        if conditions != Conditions():
            # Checked again at the commit; this early check avoids a useless transfer.
            conditions.check(await self.threads.look_up(name, lambda: self.store.etag_to_replace(name)))

        def begin(start: Start) -> Upload:
            if start.only_keys:
                raise invalid_field(
                    "/body", "the body has keys and no data", "Send 'data' after the keys, or PUT the keys to /keys."
                )
            check_shape(start.dtype, start.shape, self.limits, start.shape_pointer)
            if capacity is not None:
                self._check_capacity(capacity, start)
            if declared is not None and start.dtype.kind != "string":
                check_count(start, declared)
            spec = UploadSpec(
                name, start.dtype, start.shape, start.swap, start.fortran, prefault, lock, keep, note=note,
                replicas=replicas, keys=start.keys, capacity=capacity,
            )  # fmt: skip
            return self.store.upload(spec)

        upload = await self._receive(context, codec, fields, begin)
        await self._commit(context, upload, conditions)

    def _check_capacity(self, capacity: int, start: Start) -> None:
        """Raise invalid_field or limit_exceeded if the upload cannot have the requested capacity."""
        if start.keys is None:
            hint = f"Leave out 'capacity' at {_AT_CAPACITY}, or send keys."
            raise invalid_field(_AT_CAPACITY, "capacity is only for tables with keys, because no others grow", hint)
        rows = start.shape[0]
        if capacity < rows:
            raise invalid_field(
                _AT_CAPACITY,
                f"capacity is {capacity}, but the upload has {rows} rows",
                f"Write a number of at least {rows} at {_AT_CAPACITY}, or leave it out.",
            )
        check_shape(start.dtype, (capacity, *start.shape[1:]), self.limits, _AT_CAPACITY)

    async def put_keys(self, context: RequestContext, name: str) -> None:
        """`PUT /tensors/{name}/keys`."""
        check_new_name(name)
        fields = context.query_fields()
        keep, note = read_keep(fields), read_note(fields.get("note"), "/query/note")
        conditions = read_conditions(context.headers)
        if conditions.match is None:
            raise invalid_field(
                "/if-match",
                "If-Match is missing; it must have the ETag of the rows that the keys belong to",
                f"Read the ETag with GET /tensors/{name}, and send it in If-Match.",
            )
        codec = _codec_of(context.headers.get(b"content-type"))
        self._declared_length(context)
        etag = await self.threads.look_up(name, lambda: self.store.etag_to_replace(name))
        conditions.check(etag)
        assert etag is not None

        def begin(start: Start) -> Upload:
            return self.store.upload_keys(name, keys_of(start), keep=keep, note=note)

        upload = await self._receive(context, codec, fields, begin)
        # The commit requires the same ETag, so that the keys belong to the rows that the caller specified.
        await self._commit(context, upload, Conditions(match=(etag,)))

    def _declared_length(self, context: RequestContext) -> int | None:
        """Return the declared length of the body, or None if it is unknown. Raises payload_too_large."""
        declared = context.content_length()
        if declared is not None and declared > self.max_upload_bytes:
            raise too_large(self.max_upload_bytes, "upload_bytes")
        return None if context.headers.get(b"content-encoding") is not None else declared

    async def _receive(
        self, context: RequestContext, codec: TensorCodec | None, fields: dict[str, str], begin: Opener
    ) -> Upload:
        """Read the body into the upload that `begin` opens."""
        context.admission.budget.admit_now(MEMORY_BYTES)
        receiver = UploadReceiver(
            lambda head, whole: start_of(codec, head, fields, whole=whole, memory=context.memory),
            begin,
            self.max_upload_bytes,
            encoding=context.headers.get(b"content-encoding"),
            digest=context.headers.get(b"content-digest"),
        )
        with storage_errors():
            return await receive(context, receiver, self.threads.streams)

    async def _commit(self, context: RequestContext, upload: Upload, conditions: Conditions) -> None:
        """Publish an upload as the next version, and respond with its metadata."""
        name, note = upload.spec.name, upload.spec.note
        metadata, created = await self.threads.change(name, lambda: self.store.put(upload, conditions))
        context.changes = [Change("tensor uploaded", metadata.name, metadata.version, metadata.size, note=note or None)]
        where: tuple[Field, ...] = ((b"location", context.path.encode()),) if created else ()
        await _send(context, 201 if created else 200, metadata, *where)

    async def set_replicas(self, context: RequestContext, name: str) -> None:
        """`PUT /tensors/{name}/replicas`."""
        check_new_name(name)
        check_has_replicas(self.store, "/replicas")
        context.query_fields()
        check_json_type(context.headers.get(b"content-type", JSON))
        replicas = asked_replicas(await read_json(context))
        metadata = await self.threads.change(name, lambda: self.store.set_replicas(name, replicas))
        (metadata,) = await self.current([metadata], context)
        context.changes = [Change("replicas set", name, replicas=replicas)]
        await _send(context, 200, metadata)

    async def delete(self, context: RequestContext, name: str) -> None:
        """`DELETE /tensors/{name}`."""
        context.query_fields()
        conditions = read_conditions(context.headers)
        lock = self.store.lock_name(name)
        await self.threads.change(lock, lambda: self.store.delete(name, conditions))
        context.changes = [Change("tensor removed", *split_reference(name))]
        await context.send_empty(204)


async def _send(context: RequestContext, status: int, metadata: Metadata, *extra: Field) -> None:
    """Respond with metadata."""
    named = etag_field(metadata.etag), version_field(metadata.version)
    await context.send(status, JSON, orjson.dumps(metadata_body(metadata)), *named, *extra)


def with_name(handler: Callable[[RequestContext, str], Awaitable[None]]) -> Handler:
    """Wrap `handler` with a check that the name in the path is valid: a tensor, `NAME@7` or an alias."""

    async def handle(context: RequestContext) -> None:
        (name,) = context.parameters
        check_reference(name)
        await handler(context, name)

    return handle


def check_count(start: Start, declared: int) -> None:
    """Refuse an upload early if its declared length cannot be right. Raises element_count_mismatch."""
    wanted = start.dtype.item_size
    for size in start.shape:
        wanted = min(wanted * size, 2**70)
    if 0 in start.shape:
        wanted = 0
    offset = start.offset + (0 if start.keys is None else start.keys.size)
    if declared != offset + wanted:
        of_keys = "" if start.keys is None else f"{start.keys.size} bytes of keys and "
        raise GatherError(
            "element_count_mismatch",
            f"{declared - start.offset} bytes of {'items' if start.keys is None else 'keys and rows'} are announced, "
            f"which is not what {of_keys}shape {list(start.shape)} of {start.dtype.name} requires",
            pointer="/body",
            hint=WHOLE_FILE_HINT
            if start.offset
            else packed_size_hint(start.dtype, start.shape, max(0, declared - offset)),
        )


def keys_of(start: Start) -> KeysSpec:
    """Return the spec of the keys in a body that contains only keys. Raises invalid_field and unsupported_dtype."""
    if start.keys is not None:
        if not start.only_keys:
            raise invalid_field("/body", "the body has keys and data", "Send only the keys, or PUT both as a version.")
        return start.keys
    if start.dtype.name not in ("int64", "uint64"):
        raise GatherError(
            "unsupported_dtype",
            f"keys must be int64, uint64 or strings, not {start.dtype.name}",
            pointer="/body",
            hint="Send int64 or uint64, or strings as safetensors with keys.offsets and keys.bytes.",
        )
    if len(start.shape) != 1:
        raise invalid_field(start.shape_pointer, f"keys must have one dimension, not the shape {list(start.shape)}")
    return KeysSpec("int64" if start.dtype.name == "int64" else "uint64", start.shape[0], swap=start.swap)


def read_page(context: RequestContext) -> tuple[int, str | None]:
    """Read the paging fields.

    Returns the number of entries, and the name after which to begin (None to begin at the start). Raises invalid_field.
    """
    fields = context.query_fields()
    limit = _read_number(fields, "limit", MAX_LIST)
    return USUAL_LIST if limit is None else limit, fields.get("after")


def read_keep(fields: Mapping[str, str]) -> int | None:
    """Read the number of versions to keep; None selects the service's setting. Raises invalid_field."""
    return _read_number(fields, "keep", MAX_KEEP, ", the new version among them")


def read_replicas(fields: Mapping[str, str], store: TensorStore) -> int | None:
    """Read the number of replicas of an upload; None if not given. Raises invalid_field."""
    if "replicas" in fields:
        check_has_replicas(store, "/query/replicas")
    return _read_number(fields, "replicas", MOST_REPLICAS)


def _read_number(fields: Mapping[str, str], name: str, most: int, note: str = "") -> int | None:
    """Read the `name` query field, an integer from 1 to `most`; None if not given. Raises invalid_field."""
    text = fields.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise invalid_field(
            f"/query/{name}",
            f"{name} must be from 1 to {most}{note}",
            f"Write a number from 1 to {most} in place of {shorten(text)!r}.",
        )
    return int(text)


def read_capacity(text: str | None) -> int | None:
    """Read the number of rows that an upload reserves; None if not given. Raises invalid_field."""
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        hint = f"Write a whole number in place of {shorten(text)!r}."
        raise invalid_field(_AT_CAPACITY, "capacity must be a number of rows", hint)
    return int(text)


def check_has_replicas(store: TensorStore, pointer: str) -> None:
    """Raise invalid_field at `pointer` if the store is on a single machine and so has no replicas."""
    if not store.has_replicas:
        raise invalid_field(
            pointer,
            "this service runs on one machine: its tensors have no replicas",
            "Leave out replicas, or send the request to a router of a cluster.",
        )


def read_note(text: str | None, pointer: str) -> str:
    """Read the caller's note on a version; "" if not given. Raises invalid_field."""
    note = text or ""
    wrong = next((sign for sign in note if category(sign) in ("Cc", "Cs")), None)
    if wrong is not None:
        raise invalid_field(
            pointer,
            f"note has the character U+{ord(wrong):04X}, but must not have control characters or lone surrogates",
            "Write the note on one line, without tabs or line breaks.",
        )
    size = len(note.encode())
    if size > MAX_NOTE_BYTES:
        raise invalid_field(
            pointer,
            f"note has {size} bytes of UTF-8; the limit is {MAX_NOTE_BYTES}",
            f"Write at most {MAX_NOTE_BYTES} bytes, such as the ids of the run and of the commit.",
        )
    return note


def read_flag(fields: dict[str, str], name: str) -> bool:
    """Read a boolean query field; False if not given. Raises invalid_field."""
    value = fields.get(name, "false")
    if value not in ("true", "false"):
        hint = f"{replacement_text(value, near_name(value, ('true', 'false')) or 'true')} at /query/{name}."
        raise invalid_field(f"/query/{name}", f"{name} must be true or false", hint)
    return value == "true"


def _codec_of(field: bytes | None) -> TensorCodec | None:
    """Return the format for an upload's media type, or None if the media type implies no format.

    Raises unsupported_media_type.
    """
    kind = (field or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind and kind != _FORM and kind not in TENSORS:
        near = near_name(kind, TENSORS) or NPY.media_type
        hint = f"Send 'Content-Type: {near}' if the body has that type; {MEDIA_TYPES} are accepted."
        raise GatherError("unsupported_media_type", f"{kind!r} is not supported; use {MEDIA_TYPES}", hint=hint)
    return TENSORS.get(kind)


def metadata_body(metadata: Metadata) -> dict[str, Any]:
    """Return a tensor's metadata as a JSON object."""
    return {
        "name": metadata.name,
        "version": metadata.version,
        "versions": metadata.versions,
        "dtype": metadata.dtype,
        "shape": metadata.shape,
        "bytes": metadata.size,
        "etag": metadata.etag,
        "sha256": metadata.sha256,
        "created": time_text(metadata.created),
        "modified": time_text(metadata.modified),
        "prefault": metadata.prefault,
        "lock": metadata.lock,
        "keys": None if metadata.keys is None else {"dtype": metadata.keys.dtype, "sha256": metadata.keys.sha256},
        **({} if metadata.capacity is None else {"capacity": metadata.capacity}),
        **({} if metadata.replicas is None else {"replicas": metadata.replicas}),
        **({"ranges": [_range_body(one) for one in metadata.ranges]} if metadata.ranges else {}),
        **({"note": metadata.note} if metadata.note else {}),
        **({"damaged": True} if metadata.damaged else {}),
    }


def _range_body(one: RangeMetadata) -> dict[str, Any]:
    scattered = {"primary": one.primary, "in_sync": one.in_sync} if one.in_sync else {}
    return {"start": one.start, "stop": one.stop, "shards": one.shards, **scattered}


def time_text(nanoseconds: int) -> str:
    """Format a time, given in nanoseconds since the epoch, as in RFC 3339."""
    moment = datetime.fromtimestamp(nanoseconds // 1000 / 1e6, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")

"""`GET /tensors/{name}/keys`: the keys of a table, all of one version however many changes come meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import is_unchanged
from app.api.disk_threads import DiskThreads
from app.api.routes.tensors_content import BY_ACCEPT, admitted_codecs, content_fields, send_pieces, spec_sent
from app.errors import GatherError
from app.formats.body_formats import RAW, SAFETENSORS_FILE, TensorCodec
from app.formats.safetensors.upload import keys_head
from app.store import LocalStore
from app.store.files.key_pieces import PIECE_BYTES, ReadKeys, framed_pieces, key_pieces
from app.tensors.dtypes import DTYPES
from app.tensors.keys_spec import KeysSpec
from app.tensors.string_frames import HEAD


class KeysRoute:
    """Downloads of keys."""

    def __init__(self, store: LocalStore, threads: DiskThreads) -> None:
        self.store = store
        self.threads = threads

    async def __call__(self, context: RequestContext, name: str) -> None:
        """Answer with all keys. Raises GatherError for everything it refuses."""
        context.query_fields()
        content = await self.threads.look_up(name, lambda: self.store.content(name))
        if content.keys is None:
            raise no_keys(name)
        etag = content.resident().etag
        if await is_unchanged(context, etag, BY_ACCEPT):
            return
        dtype = content.keys.layout.dtype
        snapshot = await self.threads.change(content.description.name, lambda: self.store.snapshot(content))
        try:
            if snapshot.etag != etag and await is_unchanged(context, snapshot.etag, BY_ACCEPT):
                return
            spec = await spec_sent(self.threads, name, snapshot, dtype, 0, snapshot.shape[0])
            codec = codec_of_keys(context, dtype)
            head, size, pieces = _body(codec, spec, snapshot.keys)
            fields = content_fields(codec, dtype, (spec.count,), snapshot.etag, content.data_version, len(head) + size)
            if context.method != "HEAD":
                context.memory.charge(min(size, PIECE_BYTES))
            await context.begin_answer(200, *fields)
            if context.method != "HEAD":
                await context.sender({"type": "http.response.body", "body": head, "more_body": True})
                await send_pieces(context, self.threads, name, pieces)
            await context.sender({"type": "http.response.body", "body": b""})
        finally:
            self.threads.streams.submit(snapshot.close)


def no_keys(name: str) -> GatherError:
    """no_keys for tensor `name`."""
    return GatherError("no_keys", f"{name!r} has no keys", hint="Upload keys with PUT, or ask for /content.")


def codec_of_keys(context: RequestContext, dtype: str) -> TensorCodec:
    """The format by Accept: the best of those that carry the keys; safetensors carries strings, as two tensors."""
    formats = admitted_codecs(context)
    return next((codec for codec in formats if codec is SAFETENSORS_FILE or dtype in codec.dtypes), formats[0])


def _body(codec: TensorCodec, spec: KeysSpec, read: ReadKeys) -> tuple[bytes, int, Iterator[bytes]]:
    """The head, and the bytes and pieces of what follows. Raises unsupported_dtype for strings in npy."""
    pieces = key_pieces(read, spec.dtype, 0, spec.count)
    if codec is SAFETENSORS_FILE:
        return keys_head(spec), spec.size, pieces
    head = codec.write_head(DTYPES[spec.dtype], (spec.count,), spec.size)
    if codec is RAW and spec.dtype == "string":
        frames = (frames.tobytes() for frames in framed_pieces(read, 0, spec.count))
        return head, spec.string_bytes + HEAD * spec.count, frames
    return head, spec.size, pieces

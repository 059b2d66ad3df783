"""Shared parts of downloads: the format, chosen by Accept, the header fields, and the body in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from app.api.accept_header import admitted
from app.api.asgi_request import Field, RequestContext
from app.api.conditional_requests import etag_field, version_field
from app.errors import GatherError
from app.formats.body_formats import RAW, SAFETENSORS_FILE, TENSORS, TensorCodec

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
    """Return the most preferred format by Accept that supports `dtype`; the most preferred one if none does."""
    formats = _admitted(context)
    return next((codec for codec in formats if dtype in codec.dtypes), formats[0])


def codec_for_keys(context: RequestContext, dtype: str) -> TensorCodec:
    """Return the most preferred format by Accept that supports keys of `dtype`.

    safetensors supports string keys, as two tensors.
    """
    formats = _admitted(context)
    return next((codec for codec in formats if codec is SAFETENSORS_FILE or dtype in codec.dtypes), formats[0])


def no_keys(name: str) -> GatherError:
    """Return the error no_keys for tensor `name`."""
    return GatherError("no_keys", f"{name!r} has no keys", hint="Upload keys with PUT, or ask for /content.")


def _admitted(context: RequestContext) -> list[TensorCodec]:
    """Return the formats that Accept allows, most preferred first."""
    names = admitted(context.headers.get(b"accept", b""), _FORMATS, RAW.media_type.encode())
    return [_FORMATS[name] for name in names]

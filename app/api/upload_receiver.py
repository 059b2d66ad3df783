"""Receives the body of an upload: the event loop reads it from the socket, and a thread writes it to the store.

While the thread checks, hashes and writes one piece, the event loop receives the next. At most two pieces are in
memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Final

import numpy as np

from app.api.asgi_request import RequestContext
from app.api.content_codings import inflater
from app.api.request_body import too_large
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError, invalid_field
from app.formats.npy import Start
from app.store.files.write_uploaded_tensor import Upload
from app.tensors.buffer_type import Buffer

PIECE_BYTES: Final = 1 << 20
"""Bytes of the body that are processed at a time."""
MEMORY_BYTES: Final = 4 * PIECE_BYTES
"""Bytes of memory charged for an upload, whatever its size, after its first whole piece has arrived."""
_DIGEST: Final = re.compile(r"\s*([a-z0-9*-]+)\s*=\s*:([A-Za-z0-9+/=]*):\s*")
Starter = Callable[[bytearray, bool], Start | None]
Opener = Callable[[Start], Upload]


class UploadReceiver:
    """Converts the bytes of a body to an `Upload`. `take` and `end` block; call them in a thread, one call at a time.

    `starter` parses the first bytes, and returns None if it needs more; `opener` begins the upload in the store.
    """

    def __init__(
        self, starter: Starter, opener: Opener, limit: int, *, encoding: bytes | None, digest: bytes | None
    ) -> None:
        self.upload: Upload | None = None
        self._starter = starter
        self._opener = opener
        self._limit = limit
        self._size = 0
        self._head = bytearray()
        self._inflater = inflater(encoding)
        self._wanted_digest = read_digest(digest)
        self._digest = hashlib.sha256() if self._wanted_digest is not None else None

    def take(self, piece: Buffer) -> None:
        """Process the next bytes of the body. Raises GatherError and OSError."""
        if self._digest is not None:
            self._digest.update(piece)
        for part in (piece,) if self._inflater is None else self._inflater.pieces(piece):
            self._size += len(part)
            if self._size > self._limit:
                raise too_large(self._limit, "upload_bytes")
            if self.upload is not None:
                self.upload.write(part)
                continue
            self._head += part
            self._begin_upload(whole=False)

    def _begin_upload(self, *, whole: bool) -> None:
        start = self._starter(self._head, whole)
        if start is not None:
            self.upload = self._opener(start)
            self.upload.write(memoryview(bytes(self._head))[start.offset :])
            self._head.clear()

    def end(self) -> Upload:
        """Finish the upload after the last bytes, and return it. Raises GatherError and OSError."""
        if self._inflater is not None:
            self._inflater.finish()
        if self._digest is not None and self._digest.digest() != self._wanted_digest:
            raise GatherError(
                "malformed_request",
                "the body does not match Content-Digest",
                pointer="/content-digest",
                hint="Send the whole file, or the digest of the body as sent.",
            )
        if self.upload is None:
            self._begin_upload(whole=True)
        assert self.upload is not None
        self.upload.finish()
        return self.upload

    def abandon(self) -> None:
        """Discard the upload."""
        if self.upload is not None:
            with suppress(OSError):
                self.upload.abandon()


async def receive(context: RequestContext, receiver: UploadReceiver, threads: Executor) -> Upload:
    """Read the body of `context` into `receiver`. Discards the upload on any error.

    Raises GatherError, OSError and ClientGone.
    """
    loop = asyncio.get_running_loop()
    working: asyncio.Future[Any] | None = None
    pieces = _PieceReader(context)
    try:
        while (piece := await pieces.read()) is not None:
            if working is not None:
                await asyncio.shield(working)
            working = loop.run_in_executor(threads, receiver.take, piece)
        if working is not None:
            await asyncio.shield(working)
        working = loop.run_in_executor(threads, receiver.end)
        upload: Upload = await asyncio.shield(working)
        return upload
    except BaseException:
        # Wait for the thread even if the request is canceled: once the files are closed, other files may reuse their
        # descriptors.
        if working is not None:
            await asyncio.wait([working])
        await asyncio.shield(loop.run_in_executor(threads, receiver.abandon))
        raise


class _PieceReader:
    """Reads the body of an upload in pieces of PIECE_BYTES.

    The first piece is charged as it arrives, so that an upload that declares a body but does not send it holds no
    memory.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._left = context.content_length()
        """Bytes not yet received; None if the length is unknown."""
        self._charged = 0
        self._ended = False

    async def read(self) -> Buffer | None:
        """Return the next piece, or None after the last one. Raises ClientGone, and any error of charging."""
        if self._ended:
            return None
        piece = await (self._read_chunked() if self._left is None else self._read_declared(self._left))
        self._charge(MEMORY_BYTES - self._charged)
        return piece

    async def _read_declared(self, left: int) -> Buffer:
        """Read a piece of a body of known length, directly into its buffer."""
        piece = np.empty(min(left, PIECE_BYTES), np.uint8).data
        if not await self._context.exchange.read_into(piece, self._charge):
            raise ClientGone
        self._left = left - len(piece)
        self._ended = not self._left
        return piece

    async def _read_chunked(self) -> Buffer:
        """Read a piece of a chunked body."""
        piece = bytearray()
        while len(piece) < PIECE_BYTES and not self._ended:
            message = await self._context.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece += message["body"]
            self._ended = not message["more_body"]
            self._charge(len(message["body"]))
        return piece

    def _charge(self, size: int) -> None:
        wanted = min(size, MEMORY_BYTES - self._charged)
        if wanted > 0:
            self._context.memory.charge(wanted)
            self._charged += wanted


def read_digest(field: bytes | None) -> bytes | None:
    """Return the SHA-256 in a Content-Digest field (RFC 9530), or None if it has none. Raises invalid_field.

    Digests of other algorithms are not checked. Two different SHA-256 digests are invalid.
    """
    if field is None:
        return None
    found: set[bytes] = set()
    for member in field.decode("latin-1").split(","):
        match = _DIGEST.fullmatch(member)
        if match is None:
            raise _malformed_digest()
        if match[1] == "sha-256":
            try:
                found.add(base64.b64decode(match[2], validate=True))
            except binascii.Error:
                raise _malformed_digest() from None
    if len(found) > 1 or any(len(value) != hashlib.sha256().digest_size for value in found):
        raise _malformed_digest()
    return found.pop() if found else None


def _malformed_digest() -> GatherError:
    return invalid_field(
        "/content-digest",
        "Content-Digest must have the form sha-256=:BASE64:",
        "Send the SHA-256 of the body in base64, as sha-256=:BASE64:, or leave out the field Content-Digest.",
    )

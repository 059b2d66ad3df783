"""Content codings (RFC 9110, 8.4.1): gzip and deflate, for request and response bodies.

In a request, deflate may come with or without the zlib header, because clients send both; responses always include the
header. gzip in a request may have several members (RFC 1952, 2.2), as written by `cat a.gz b.gz` or bgzip.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

from app.errors import GatherError
from app.memory.budget import Memory
from app.tensors.buffer_type import Buffer

STEP: Final = 1 << 18
"""Maximum number of bytes to decompress at a time; zlib holds two copies of them."""
_SENT: Final = 1 << 16
"""Maximum number of input bytes per call of zlib, which copies any unused input for the next call."""
_MAGIC: Final = b"\x1f\x8b"
"""The first bytes of a gzip member (RFC 1952, 2.3.1)."""
_FREE_MEMBERS: Final = 1 << 14
_BYTES_OF_MEMBER: Final = 1 << 10
"""A body may have `_FREE_MEMBERS` gzip members, plus one for each multiple of this number of decompressed bytes.

Starting a member takes about 5 microseconds, even if it is empty.
"""
_GZIP: Final = (b"gzip", b"x-gzip")
_ANSWERS: Final = (b"gzip", b"deflate")
_GZIP_HEADER: Final = 16
"""Added to zlib's window size to read and write gzip."""
_COMPRESSED_AT_ONCE: Final = 1 << 20


class Inflater:
    """Decompresses a body that arrives in pieces: consecutive gzip members, or one deflate stream.

    Raises malformed_request if the stream is damaged, truncated or followed by other bytes, and limit_exceeded if it
    has too many nearly empty members.
    """

    def __init__(self, name: bytes) -> None:
        self._name = name.decode()
        self._is_gzip = name in _GZIP
        self._stream: Any = None
        self._members = 0
        self._inflated = 0
        self._start = b""

    def pieces(self, data: Buffer) -> Iterator[bytes]:
        """Decompress the next bytes of the body. Yields pieces of at most STEP bytes."""
        view = memoryview(self._start + bytes(data) if self._start else data)
        self._start = b""
        place = 0
        while place < len(view):
            if self._stream is None:
                if len(view) - place < 2:
                    self._start = bytes(view[place:])
                    return
                self._begin_stream(bytes(view[place : place + 2]))
            sent = view[place : place + _SENT]
            yield from self._inflate(sent)
            place += len(sent) - len(self._stream.unused_data)
            if self._stream.eof:
                self._stream = None

    def _begin_stream(self, start: bytes) -> None:
        """Begin a stream, whether the first or a later one; `start` holds its first two bytes."""
        if self._members and not (self._is_gzip and start == _MAGIC):
            raise self._trailing_bytes_error()
        most = _FREE_MEMBERS + self._inflated // _BYTES_OF_MEMBER
        if self._members >= most:
            raise GatherError(
                "limit_exceeded",
                f"the body has more than {most} gzip members, too many for its data",
                facts={"limit": "gzip_members", "maximum": most},
                hint="Compress the body as one gzip stream.",
            )
        self._members += 1
        if self._is_gzip:
            window = zlib.MAX_WBITS | _GZIP_HEADER
        else:
            is_wrapped = start[0] & 15 == 8 and (start[0] << 8 | start[1]) % 31 == 0
            window = zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS
        self._stream = zlib.decompressobj(window)

    def _inflate(self, rest: Buffer) -> Iterator[bytes]:
        """Decompress bytes until they are used up or their stream ends."""
        stream = self._stream
        size = STEP
        try:
            # After a full piece, zlib may have more output, even without input.
            while (rest or size == STEP) and not stream.eof:
                piece = stream.decompress(rest, STEP)
                rest = stream.unconsumed_tail
                size = len(piece)
                self._inflated += size
                if piece:
                    yield piece
        except zlib.error as error:
            raise GatherError(
                "malformed_request",
                f"the body is not valid {self._name}: {error}",
                hint=f"Compress the body with {self._name}, or leave out the field Content-Encoding.",
            ) from None

    def finish(self) -> None:
        """Check that the body is complete. Raises malformed_request."""
        if self._start and self._members:
            raise self._trailing_bytes_error()
        if self._stream is not None or not self._members:
            raise GatherError("malformed_request", "the compressed body ends early", hint="Send the whole stream.")

    def _trailing_bytes_error(self) -> GatherError:
        hint = "Send exactly one compressed stream."
        if self._is_gzip:
            hint = "Send gzip members only: the bytes after the last one are not a member."
        return GatherError("malformed_request", "extra bytes follow the compressed body", hint=hint)


def inflater(encoding: bytes | None) -> Inflater | None:
    """Return the decompressor for a Content-Encoding, or None for identity. Raises unsupported_media_type."""
    name = (encoding or b"").strip().lower()
    if name in (b"identity", b""):
        return None
    if name not in (*_GZIP, b"deflate"):
        raise GatherError(
            "unsupported_media_type",
            f"the Content-Encoding {name.decode('latin-1')!r} is not supported; use gzip or deflate",
            hint="Send 'Content-Encoding: gzip' with a gzip stream, or the uncompressed body without that field.",
        )
    return Inflater(name)


def negotiate_coding(accept_encoding: bytes | None) -> bytes | None:
    """Return the content coding for a response, or None.

    Responses are compressed only if the field lists exactly one coding. Triton's clients request compression this way.
    Other clients always list every coding that they support, so compression would slow down every response to them.
    """
    return accept_encoding if accept_encoding in _ANSWERS else None


def compress_answer(pieces: list[Buffer], coding: bytes, memory: Memory) -> list[Buffer]:
    """Compress `pieces` into one gzip or zlib stream, and return it in pieces. Charges `memory` for each piece."""
    stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | (_GZIP_HEADER if coding == b"gzip" else 0))
    done: list[Buffer] = []
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _COMPRESSED_AT_ONCE):
            part = stream.compress(view[start : start + _COMPRESSED_AT_ONCE])
            memory.charge(len(part))
            done.append(part)
    done.append(stream.flush())
    return done

"""Content codings (RFC 9110, 8.4.1): gzip and deflate, of requests' bodies and of answers.

A request's deflate may come with the zlib header or without, since clients send both; an answer's has it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.wire.little_endian_items import Charge

STEP: Final = 1 << 18
"""Most bytes that are inflated at once: zlib holds them twice."""
_SENT: Final = 1 << 16
"""Most bytes that are given to zlib at once: what one call leaves of them is copied for the next."""
_GZIP: Final = (b"gzip", b"x-gzip")
_ANSWERS: Final = (b"gzip", b"deflate")
_GZIP_HEADER: Final = 16
"""Added to the window's size, it makes zlib read and write gzip."""
_COMPRESSED_AT_ONCE: Final = 1 << 20


class Inflater:
    """Inflates a body that comes in pieces.

    Raises malformed_request for a stream that is damaged, cut short or followed by other bytes.
    """

    def __init__(self, name: bytes) -> None:
        self._name = name.decode()
        self._stream: Any = zlib.decompressobj(zlib.MAX_WBITS | _GZIP_HEADER) if name in _GZIP else None
        self._start = b""

    def pieces(self, data: Buffer) -> Iterator[bytes]:
        """What the next bytes of the body inflate to, at most STEP bytes at a time."""
        if self._stream is None:
            data = self._start = self._start + bytes(data)
            if len(data) < 2:
                return
            self._start = b""
            wrapped = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        stream = self._stream
        view = memoryview(data)
        try:
            for begin in range(0, len(view), _SENT):
                if stream.eof:
                    raise _bytes_follow()
                rest: bytes | memoryview = view[begin : begin + _SENT]
                size = STEP
                # A full piece may have more behind it even where no input is left.
                while (rest or size == STEP) and not stream.eof:
                    piece = stream.decompress(rest, STEP)
                    rest = stream.unconsumed_tail
                    size = len(piece)
                    yield piece
        except zlib.error as error:
            raise GatherError(
                "malformed_request",
                f"the body is not valid {self._name}: {error}",
                hint=f"Compress the body with {self._name}, or leave out the field Content-Encoding.",
            ) from None
        if stream.unused_data:
            raise _bytes_follow()

    def finish(self) -> None:
        """The body has ended."""
        if self._stream is None or not self._stream.eof:
            raise GatherError("malformed_request", "the compressed body ends early", hint="Send the whole stream.")


def _bytes_follow() -> GatherError:
    return GatherError(
        "malformed_request",
        "bytes follow the compressed body",
        hint="Send one compressed stream and no more.",
    )


def inflater(encoding: bytes | None) -> Inflater | None:
    """What inflates a body of this Content-Encoding, None for one as it is. Raises unsupported_media_type."""
    name = (encoding or b"").strip().lower()
    if name in (b"identity", b""):
        return None
    if name not in (*_GZIP, b"deflate"):
        raise GatherError(
            "unsupported_media_type",
            f"the Content-Encoding {name.decode('latin-1')!r} is not read here; gzip and deflate are",
            hint="Send 'Content-Encoding: gzip' with a gzip stream, or the body as it is without that field.",
        )
    return Inflater(name)


def coding_of_answer(accept_encoding: bytes | None) -> bytes | None:
    """The content coding that an answer may have, None for none: only where the field names one coding and no more.

    So Triton's clients ask for it. Others list what they can read in every request and would pay each time.
    """
    return accept_encoding if accept_encoding in _ANSWERS else None


def compressed(pieces: list[Buffer], coding: bytes, charge: Charge) -> list[Buffer]:
    """`pieces` as one gzip or zlib stream, in pieces no longer than what was read for them.

    `charge` is told of the bytes of each.
    """
    stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | (_GZIP_HEADER if coding == b"gzip" else 0))
    done: list[Buffer] = []
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _COMPRESSED_AT_ONCE):
            part = stream.compress(view[start : start + _COMPRESSED_AT_ONCE])
            charge(len(part))
            done.append(part)
    done.append(stream.flush())
    return done

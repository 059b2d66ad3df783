"""The Content-Encoding of requests: gzip, and deflate with or without the zlib header, since clients send both."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

from app.errors import GatherError

STEP: Final = 1 << 18
"""Most bytes that are inflated at once: zlib holds them twice."""
_SENT: Final = 1 << 16
"""Most bytes that are given to zlib at once: what one call leaves of them is copied for the next."""
_GZIP: Final = (b"gzip", b"x-gzip")


class Inflater:
    """Inflates a body that comes in pieces.

    Raises malformed_request for a stream that is damaged, cut short or followed by other bytes.
    """

    def __init__(self, name: bytes) -> None:
        self._name = name.decode()
        self._stream: Any = zlib.decompressobj(zlib.MAX_WBITS | 16) if name in _GZIP else None
        self._start = b""

    def pieces(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
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
            raise GatherError("malformed_request", f"the body is not valid {self._name}: {error}") from None
        if stream.unused_data:
            raise _bytes_follow()

    def finish(self) -> None:
        """The body has ended."""
        if self._stream is None or not self._stream.eof:
            raise GatherError("malformed_request", "the compressed body ends early")


def _bytes_follow() -> GatherError:
    return GatherError("malformed_request", "bytes follow the compressed body")


def inflater(encoding: bytes | None) -> Inflater | None:
    """What inflates a body of this Content-Encoding, None for one as it is. Raises unsupported_media_type."""
    name = (encoding or b"").strip().lower()
    if name in (b"identity", b""):
        return None
    if name not in (*_GZIP, b"deflate"):
        raise GatherError(
            "unsupported_media_type",
            f"the Content-Encoding {name.decode('latin-1')!r} is not read here; gzip and deflate are",
        )
    return Inflater(name)

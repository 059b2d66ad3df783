"""Check a stream of strings in BYTES framing, and find where each begins."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.little_endian_items import UTF8_HINT
from app.tensors.string_frames import HEAD, read_frames
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import coordinates

BODY: Final = "/body"


class FramedStrings:
    """Check a stream of framed strings, and find where each begins.

    Keeps at most one string and one piece in memory.
    """

    def __init__(self, wanted: int, longest: int, shape: tuple[int, ...]) -> None:
        self._expected = wanted
        self._max_bytes = longest
        self._shape = shape
        self._count = 0
        self._incomplete = bytearray()
        self._offset = 0

    def feed(self, piece: Buffer) -> NDArray[np.int64]:
        """Return the offsets of the strings that `piece` completes. Raises GatherError."""
        buffer = self._incomplete
        buffer += piece
        left = self._expected - self._count
        starts = np.empty(min(left, len(buffer) // HEAD), np.int64)
        octets = np.frombuffer(buffer, np.uint8)
        octets.flags.writeable = False
        count, _, no_utf8 = read_frames.run(octets, left, starts)
        whole = PackedStrings(DTYPES["string"], (count,), starts[:count], octets=octets)
        place = int(whole.array[-1]) + len(whole.frame(-1)) if len(whole.array) else 0
        head = buffer[place : place + HEAD]
        too_many = left if len(head) == HEAD and len(whole.array) == left else -1
        too_long = whole.first_longer(self._max_bytes)
        if too_long < 0 and len(head) == HEAD and int.from_bytes(head, "little") > self._max_bytes:
            too_long = len(whole.array)
        wrong = min((item for item in (too_many, too_long, no_utf8) if item >= 0), default=-1)
        if wrong >= 0:
            raise self._refusal(self._count + wrong, wrong == too_many, wrong == too_long)
        starts = self._offset + whole.array
        del octets, whole  # views on the buffer prevent resizing it
        del buffer[:place]
        self._count += len(starts)
        self._offset += place
        return starts

    def _refusal(self, item: int, too_many: bool, too_long: bool) -> GatherError:
        """Return the error for the string at index `item`. If neither flag is set, the error is invalid UTF-8."""
        if too_many:
            return self._mismatch(f"more than {self._expected} strings were sent")
        places = [Place(BODY, coordinates(item, self._shape))]
        if too_long:
            return GatherError(
                "limit_exceeded",
                f"a string is longer than {self._max_bytes} bytes",
                places=places,
                facts={"limit": "string_bytes", "maximum": self._max_bytes},
            )
        return GatherError("value_not_representable", "a string is not UTF-8", places=places, hint=UTF8_HINT)

    def finish(self) -> None:
        """End the stream. Raises element_count_mismatch."""
        if self._incomplete:
            raise self._mismatch(f"string {self._count} ends early")
        if self._count != self._expected:
            raise self._mismatch(f"{self._count} strings were sent, but the shape requires {self._expected}")

    def _mismatch(self, what: str) -> GatherError:
        return GatherError("element_count_mismatch", what, pointer=BODY)

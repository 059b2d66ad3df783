"""A body whose length is known only at its end: compressed, or sent in chunks."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.errors import GatherError
from app.memory.budget import Memory

BODY_BYTES: Final = "body_bytes"
_LIMITED: Final = {
    BODY_BYTES: "body",
    "json_bytes": "JSON of the request",
    "message_bytes": "message",
    "small_body_bytes": "body",
    "upload_bytes": "upload",
}
"""What each limit on bytes is for, by its name."""
_DOUBLED: Final = 1 << 20
_MOST: Final = 1 << 22


class UnknownLengthBody:
    """Bytes that are added piece by piece, in one block of memory of which `memory` is told before it grows.

    It holds `limit` bytes at most, the limit of this `name`, behind `lead` bytes that the body does not have.
    """

    def __init__(self, memory: Memory, limit: int, lead: int = 0, name: str = BODY_BYTES) -> None:
        self._memory = memory
        self._limit = limit
        self._name = name
        self._lead = lead
        self._block = np.empty(lead, np.uint8)
        self._size = lead

    def add(self, piece: bytes | bytearray) -> None:
        """The next bytes. Raises payload_too_large above the limit, and what charging raises."""
        end = self._size + len(piece)
        room = self._block.size
        if end > room:
            most = self._limit + self._lead
            if end > most:
                raise too_large(self._limit, self._name)
            # Twice as much each time, then an eighth more, so that moving it takes a time linear in its size.
            ahead = room if room < _DOUBLED else min(max(_DOUBLED, room // 8), _MOST)
            grown = min(max(end, room + ahead), most)
            self._memory.charge(grown - room)
            self._resize(grown)
        self._block.data[self._size : end] = piece
        self._size = end

    def finish(self) -> memoryview:
        """The body, which is complete; what was taken beyond it is given back."""
        room = self._block.size
        self._resize(self._size)
        self._memory.adjust(room, self._size)
        return self._block.data[self._lead :]

    def _resize(self, size: int) -> None:  # by itself, since tests do not trace its memory with NumPy 2.5
        # Views of the block are handed out only by `finish`, so that nobody can look at what has moved.
        self._block.resize(size, refcheck=False)


def too_large(maximum: int, name: str = BODY_BYTES) -> GatherError:
    """The refusal of a body of more than `maximum` bytes, by the limit of this name."""
    return GatherError(
        "payload_too_large",
        f"the {_LIMITED[name]} is larger than the limit of {maximum} bytes",
        facts={"limit": name, "maximum": maximum},
    )

"""What a client has sent and the parser has not had: at most one read of the socket, charged to the memory budget.

The parser would go on from one request to the next by itself. So it is fed pieces that end where a request may end.
"""

from __future__ import annotations

from typing import Final

from app.memory.budget import Budget

EMPTY_LINE: Final = b"\r\n\r\n"
"""The end of a header, and of a chunked body."""
PIECE_BYTES: Final = 1 << 13
"""Most bytes of a header or of a chunked body that the parser is fed at once: 1,365 chunks of one byte take a
millisecond."""
UNCHARGED_BYTES: Final = 1 << 11
"""Each connection may hold this much outside of requests uncharged."""


class UnparsedInput:
    """The bytes of `data`, of which the parser has had the first `place`.

    `charged` is how many bytes are charged to the budget for them and for the header that is being read.
    """

    __slots__ = ("_last_fed", "charged", "data", "place")

    def __init__(self) -> None:
        self.data = b""
        self.place = 0
        self.charged = 0
        self._last_fed = b""

    def hold(self, data: bytes, place: int) -> None:
        """Hold new input, of which the first `place` bytes are dealt with. Nothing else may be left."""
        self.data, self.place = data, place

    def add(self, data: bytes) -> None:
        """Add input behind what is left."""
        self.data = self.data[self.place :] + data
        self.place = 0

    def clear(self) -> None:
        """Drop what is left."""
        self.data, self.place = b"", 0

    @property
    def left(self) -> int:
        """How many bytes the parser has not had."""
        return len(self.data) - self.place

    def end_of_piece(self) -> int:
        """Return where a header, or a body of unknown length, may end: behind its first empty line, in a piece at
        most.
        """
        data, place, last_fed = self.data, self.place, self._last_fed
        for known in (3, 2, 1) if last_fed[-1:] in EMPTY_LINE else ():
            if last_fed.endswith(EMPTY_LINE[:known]) and data.startswith(EMPTY_LINE[known:], place):
                return place + 4 - known
        end = data.find(EMPTY_LINE, place, place + PIECE_BYTES + 3) + 4
        return end if end > 3 else min(len(data), place + PIECE_BYTES)

    def take(self, end: int) -> bytes | memoryview:
        """Return the bytes up to `end`, which the parser is fed next."""
        data, place = self.data, self.place
        self.place = end
        self._last_fed = (self._last_fed + data[max(place, end - 3) : end])[-3:]
        return data if end - place == len(data) else memoryview(data)[place:end]

    def charge(self, header_bytes: int, budget: Budget) -> bool:
        """Charge what is held, and so many bytes of a header. Returns False, having charged nothing, without room."""
        size = max(0, len(self.data) + header_bytes - UNCHARGED_BYTES)
        if size == self.charged:
            return True
        if not budget.charge_connection(size - self.charged):
            return False
        self.charged = size
        return True

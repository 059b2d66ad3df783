"""Hold the bytes that a client has sent but the parser has not seen yet, and decide when to parse and when to read
more.

Without this module, the parser would continue from one request to the next. One read returns up to 256 KiB. That can be
thousands of pipelined requests or tens of thousands of chunks, and parsing all of them at once would block every other
client. So the parser gets pieces that end where a request may end. `UnparsedInput` holds the rest: at most one read,
charged to the memory budget. A connection stops parsing when the time for the current turn of the event loop is used
up. It resumes in the next turn, one request or piece at a time, alternating with the other connections (`InputTurns`).
Until then, nothing more is read from its socket (`TimedFlowControl`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

from app.memory.budget import Budget

TURN_S: Final = 2e-3
"""Seconds per turn of the event loop for parsing, not counting the first, short request of each connection."""
EMPTY_LINE: Final = b"\r\n\r\n"
"""The end of a header and of a chunked body."""
PIECE_BYTES: Final = 1 << 13
"""Upper bound on the bytes of a header or a chunked body that the parser gets at a time.

Parsing 1,365 chunks of one byte takes a millisecond.
"""
UNCHARGED_BYTES: Final = 1 << 11
"""Bytes outside of requests that each connection may hold without being charged."""


class UnparsedInput:
    """Received bytes in `data`. The parser has seen the first `place` bytes.

    `charged` is the number of bytes charged to the budget for `data` and for the header that is being read.
    """

    __slots__ = ("_last_fed", "charged", "data", "place")

    def __init__(self) -> None:
        self.data = b""
        self.place = 0
        self.charged = 0
        self._last_fed = b""

    def hold(self, data: bytes, place: int) -> None:
        """Hold new input whose first `place` bytes are already processed. No earlier input may be left."""
        self.data, self.place = data, place

    def add(self, data: bytes) -> None:
        """Append input."""
        self.data = self.data[self.place :] + data
        self.place = 0

    def clear(self) -> None:
        """Discard all held input."""
        self.data, self.place = b"", 0

    @property
    def left(self) -> int:
        """Number of bytes that the parser has not seen."""
        return len(self.data) - self.place

    def end_of_piece(self) -> int:
        """Return the end of the next piece.

        The piece ends after the first empty line, which may end a header or body, or after PIECE_BYTES bytes.
        """
        data, place, last_fed = self.data, self.place, self._last_fed
        for known in (3, 2, 1) if last_fed[-1:] in EMPTY_LINE else ():
            if last_fed.endswith(EMPTY_LINE[:known]) and data.startswith(EMPTY_LINE[known:], place):
                return place + 4 - known
        end = data.find(EMPTY_LINE, place, place + PIECE_BYTES + 3) + 4
        return end if end > 3 else min(len(data), place + PIECE_BYTES)

    def take(self, end: int) -> bytes | memoryview:
        """Return the bytes up to `end` to feed to the parser, and advance."""
        data, place = self.data, self.place
        self.place = end
        self._last_fed = (self._last_fed + data[max(place, end - 3) : end])[-3:]
        return data if end - place == len(data) else memoryview(data)[place:end]

    def charge(self, header_bytes: int, budget: Budget) -> bool:
        """Charge the held bytes and `header_bytes` of a header.

        Returns False, and charges nothing, if there is no room.
        """
        size = max(0, len(self.data) + header_bytes - UNCHARGED_BYTES)
        if size == self.charged:
            return True
        if not budget.charge_connection(size - self.charged):
            return False
        self.charged = size
        return True


class TimedFlowControl(FlowControl):
    """Flow control that records in `resumed` when reading last resumed (in seconds of `monotonic`, 0.0 before any
    pause).

    Reading stops while `holds` is set, because received bytes are waiting to be parsed, and while `paused` is set,
    because parsed bytes are waiting for the application.
    """

    resumed = 0.0
    holds = False
    paused = False

    def hold(self) -> None:
        """Stop reading until `release`."""
        self.holds = True
        super().pause_reading()

    def release(self) -> None:
        """End `hold`. Reading resumes unless `pause_reading` is still in effect."""
        self.holds = False
        if self.read_paused:
            self._resume()

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self.paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """End `pause_reading`. Reading resumes unless input is still waiting to be parsed."""
        self.paused = False
        if self.read_paused:
            self._resume()

    def _resume(self) -> None:
        if not (self.holds or self.paused):
            self.resumed = monotonic()  # the pause must not count against the client as slowness
            super().resume_reading()


class InputTurns:
    """The connections that are waiting for the next turn of the event loop, and the time left in the current turn.

    Each connection is represented by a function that processes one request or piece, and enqueues itself again if more
    is left.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._ends = 0.0
        self._is_open = False

    def has_time(self) -> bool:
        """Return whether this turn of the event loop has time for more input."""
        now = perf_counter()
        if not self._is_open:
            self._is_open = True
            self._ends = now + TURN_S
            asyncio.get_running_loop().call_soon(self._next_turn)
        return now < self._ends

    def enqueue(self, read_next: Callable[[], None]) -> None:
        """Schedule a connection to resume in the next turn."""
        self._waiting[read_next] = None
        if not self._is_open:
            self._is_open = True
            self._ends = 0.0
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Resume the connections round-robin, one request or piece each, until the time is used up."""
        self._is_open = False
        while self._waiting and self.has_time():
            read_next, _ = self._waiting.popitem(last=False)
            read_next()


_turns: Final = InputTurns()
has_time: Final = _turns.has_time
enqueue: Final = _turns.enqueue

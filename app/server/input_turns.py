"""Shares each turn of the event loop among the connections that have sent more than one turn may take.

One read brings up to 256 KiB: thousands of pipelined requests, or tens of thousands of chunks. To feed the parser all
of it at once would keep every other client waiting. So a connection stops when the turn's time is over, and goes on in
the next turn, one request or piece at a time, in line with the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import perf_counter
from typing import Final, Protocol

TURN_S: Final = 2e-3
"""Seconds of one turn of the event loop that input beyond a first, short request of each connection may take."""


class InputConnection(Protocol):
    """What this module uses of a connection."""

    def read_on(self, *, first: bool, only: bool = False) -> None:
        """Feed the parser; with `first` and `only` one request or piece of one. Enqueues itself if more is left."""
        ...


class InputTurns:
    """The connections that wait for the next turn of the event loop, and the time that is left of this one."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[InputConnection, None] = OrderedDict()
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

    def enqueue(self, connection: InputConnection) -> None:
        """Have `connection` read on in the next turn."""
        self._waiting[connection] = None
        if not self._is_open:
            self._is_open = True
            self._ends = 0.0
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Let the connections read on, one request or piece each, round after round, until the time is over."""
        self._is_open = False
        while self._waiting and self.has_time():
            connection, _ = self._waiting.popitem(last=False)
            connection.read_on(first=True, only=True)


_turns: Final = InputTurns()
has_time: Final = _turns.has_time
enqueue: Final = _turns.enqueue

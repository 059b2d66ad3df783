"""How long one gather may hold the event loop, on which all other requests wait meanwhile.

A gather that is predicted to take longer runs on a thread (see `choose_backend`). The limit is GATHERND_LOOP_MAX_US
where that is set, else it follows from the measured time of a hand-off to a thread. What is done before and after a
gather is not predicted: its size decides.
"""

from __future__ import annotations

from typing import Final

NEVER: Final = -1.0
"""As a limit: nothing may run on the event loop."""
LARGE_INDEX_SCAN: Final = 1 << 14
"""Indices from which on a thread looks at them: NumPy needs 0.1 to 0.3 ms for so many."""
LARGE_COPY: Final = 1 << 18
"""Bytes from which on a thread writes them: 5 to 50 µs, the longer time into fresh pages."""
FEW_STRINGS: Final = 1 << 10
"""Strings whose sizes are added up on the event loop: the head of each may be anywhere in memory."""
_BOUNDS_S: Final = (50e-6, 1500e-6)
"""A hand-off takes 30 µs where cores wake quickly, and 200 on an idle virtual machine: with a lower bound it would be
more than a seventh of the gathers that are handed off there."""
_HAND_OFFS: Final = 10
"""The event loop is held for this many hand-offs at most, within the bounds: a longer gather loses less than a tenth by
moving to a thread, and all other requests gain."""


def loop_max_s(loop_max_us: float | None, hand_off_s: float) -> float:
    """Seconds of the longest gather for the event loop: as set, else a number of hand-offs."""
    if loop_max_us is not None:
        return loop_max_us * 1e-6
    low, high = _BOUNDS_S
    return min(max(_HAND_OFFS * hand_off_s, low), high)

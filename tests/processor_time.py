"""Processor time that code takes, in units of what this machine takes for a known piece of work.

So a bound holds on slow machines, too. It leaves room for what caches and other processes do: tests hold what grows out
of all proportion, exact figures are for `benchmarks/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from time import thread_time

from app.errors import GatherError

_NUMBERS = b"[" + b"0.123456789," * 8000 + b"0]"
"""What `json.loads` takes 1.5 ms for (AMD EPYC)."""
LONGEST = 60.0
"""Units that work of the event loop may take: 90 ms on that machine, where it takes less than 20."""
_RUNS = 3


def least_seconds(run: Callable[[], object]) -> float:
    """Processor seconds of this thread for the shortest of some runs, which may end with an error of a request."""
    taken = []
    for _ in range(_RUNS):
        begun = thread_time()
        with suppress(GatherError):
            run()
        taken.append(thread_time() - begun)
    return min(taken)


@cache
def unit() -> float:
    """Seconds of the known piece of work."""
    return least_seconds(lambda: json.loads(_NUMBERS))


def units(run: Callable[[], object]) -> float:
    """How many units `run` takes."""
    return least_seconds(run) / unit()

"""Counts an answered gather in the cells of its metrics, and fills in the header lines that most answers have.

A gather's cells (see `shared_counters`) are given by a `table` of their addresses, 0 for those that it has not
(`increment_layout`). Times are seconds of `perf_counter`, `received` and `sent` are bytes. The functions here are the
plain ones, in whose place the compiled ones are used once they are ready.
"""

from __future__ import annotations

from bisect import bisect_left
from ctypes import c_double, c_int64
from typing import Final

from app.compilation.until_compiled import UntilCompiled
from app.telemetry.increment_layout import CELLS, LOOKUPS, MEASURED, RECEIVED, REQUESTS, ROUTES, SENT, STAGES, TIMES
from app.telemetry.metric_definitions import BUCKETS

_Table: Final = c_int64 * CELLS
_Times: Final = c_double * (STAGES + 4)


@UntilCompiled
def add(
    table: int,
    start: float,
    parsed: float,
    kernel: float,
    done: float,
    finished: float,
    received: int,
    sent: int,
) -> None:
    """Count a gather."""
    cells = _Table.from_address(table)[:]
    increments = [(REQUESTS, 1.0), (ROUTES, 1.0), (MEASURED, done - kernel), (RECEIVED, received), (SENT, sent)]
    if cells[LOOKUPS]:
        increments.append((LOOKUPS, 1.0))
    for cell, number in increments:
        c_double.from_address(cells[cell]).value += number
    seconds = finished - start
    times = _Times.from_address(cells[TIMES])
    times[bisect_left(BUCKETS, seconds)] += 1.0
    for place, number in enumerate((seconds, parsed - start, kernel - parsed, done - kernel, finished - done)):
        times[STAGES - 1 + place] += number


@UntilCompiled
def answer(
    at: int,
    table: int,
    number: int,
    start: float,
    parsed: float,
    kernel: float,
    done: float,
    finished: float,
    received: int,
    sent: int,
) -> bool:
    """Count a gather, and write its id and times into the header lines at the address `at` (HEADER_TEMPLATE_AT).

    Returns False, having done neither, for a request that took SHORT_S or longer. This plain one leaves every request
    to what counts those.
    """
    return False

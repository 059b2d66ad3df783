"""Counts an answered gather in the cells of its metrics, and fills in the header lines that most answers have.

A gather's cells (see `shared_counters`) are given by a `table` of their addresses, 0 for those that it has not. Times
are seconds of `perf_counter`, `received` and `sent` are bytes. The functions here are the plain ones, in whose place
the compiled ones are used once they are ready.
"""

from __future__ import annotations

from bisect import bisect_left
from ctypes import c_double, c_int64
from typing import Any, Final

import numpy as np

from app.compilation.until_compiled import UntilCompiled
from app.telemetry.metric_definitions import BUCKETS
from app.telemetry.request_id import DIGITS, PREFIX

HEADER_TEMPLATE: Final[Any] = bytearray(
    b"x-request-id: %b-%b\r\nserver-timing: parse;dur=0.000, queue;dur=0.000, kernel;dur=0.000, encode;dur=0.000\r\n"
    % (PREFIX.encode(), b"0" * DIGITS)
)
"""The header lines that are filled in for one answer; they are copied before the next one."""
HEADER_TEMPLATE_AT: Final = np.frombuffer(
    HEADER_TEMPLATE, np.uint8
).ctypes.data  # an argument of the calls, since compiled code is kept for other processes
ID_END: Final = HEADER_TEMPLATE.index(b"\r\n")
PARSE, QUEUE, KERNEL, ENCODE = (
    HEADER_TEMPLATE.index(name) + len(name)
    for name in (b"parse;dur=0.", b"queue;dur=0.", b"kernel;dur=0.", b"encode;dur=0.")
)
SHORT_S: Final = 1e-3
"""Requests that took less have their times written as three digits of microseconds."""

# Places in the table of addresses of the cells of one kind of gathers.
CELLS: Final = 7
REQUESTS, TIMES, ROUTES, MEASURED, RECEIVED, SENT, LOOKUPS = range(CELLS)
"""TIMES has the buckets side by side, one more than there are bounds, then the sum of all seconds and of each stage."""
STAGES: Final = len(BUCKETS) + 2

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

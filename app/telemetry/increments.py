"""Count a gather in the cells of its metrics, and fill in the header lines that most responses share.

`table` is the address of an array of addresses: those of a gather's cells (see `shared_counters`), or 0 for a cell that
the gather does not have. Times are in seconds of `perf_counter`; `received` and `sent` are in bytes. The functions here
are plain Python; the compiled ones replace them once they are ready.
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
"""The header lines, filled in for one response at a time; they are copied before the next one."""
HEADER_TEMPLATE_AT: Final = np.frombuffer(
    HEADER_TEMPLATE, np.uint8
).ctypes.data  # passed as an argument, because compiled code is cached for other processes
ID_END: Final = HEADER_TEMPLATE.index(b"\r\n")
PARSE, QUEUE, KERNEL, ENCODE = (
    HEADER_TEMPLATE.index(name) + len(name)
    for name in (b"parse;dur=0.", b"queue;dur=0.", b"kernel;dur=0.", b"encode;dur=0.")
)
SHORT_S: Final = 1e-3
"""The times of requests that took less than this are written as three digits of microseconds."""

# Positions in the table of cell addresses for one kind of gather.
CELLS: Final = 7
REQUESTS, TIMES, ROUTES, MEASURED, RECEIVED, SENT, LOOKUPS = range(CELLS)
"""The cells of TIMES are adjacent: the buckets (one more than there are bounds), the sum of seconds, and each stage's
sum.
"""
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
    """Count a gather. The module's docstring describes the arguments."""
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

    If the request took SHORT_S or longer, does nothing and returns False. This plain version always returns False, so
    its caller counts the request.
    """
    return False

"""The header lines and the metrics of an answered gather, in Python: the sibling of `compiled_increments`."""

from __future__ import annotations

from bisect import bisect_left
from ctypes import c_double, c_int64
from typing import Final

from app.telemetry.increment_layout import (
    CELLS,
    ENCODE,
    HEADER_TEMPLATE,
    ID_END,
    KERNEL,
    LOOKUPS,
    MEASURED,
    PARSE,
    QUEUE,
    RECEIVED,
    REQUESTS,
    ROUTES,
    SENT,
    SHORT_S,
    STAGES,
    TIMES,
)
from app.telemetry.metric_definitions import BUCKETS
from app.telemetry.request_id import DIGITS

_Table: Final = c_int64 * CELLS
_Times: Final = c_double * (STAGES + 4)


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
    """See `app.telemetry.increments`."""
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
    """See `app.telemetry.increments`."""
    if not finished - start < SHORT_S:
        return False
    HEADER_TEMPLATE[ID_END - DIGITS : ID_END] = b"%0*x" % (DIGITS, number % 16**DIGITS)
    for place, seconds in (
        (PARSE, parsed - start),
        (QUEUE, kernel - parsed),
        (KERNEL, done - kernel),
        (ENCODE, finished - done),
    ):
        HEADER_TEMPLATE[place : place + 3] = b"%03d" % int(seconds * 1e6)
    add(table, start, parsed, kernel, done, finished, received, sent)
    return True

"""The header lines and the metrics of an answered gather, in one call of compiled code.

The call writes the request's id and times into HEADER_TEMPLATE, the header lines that most answers have, and adds to
the cells of its metrics (see `shared_counters`), in the memory that other processes read. To do so in Python, number by
number, took 3 to 4 µs: with limits, keys and logs, 9.0 % of a tiny gather's rate before and 3.9 % after
(`benchmarks.cost`, 2026-11-20, 2 cores, AMD EPYC).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from numba import types

from app import llvm_intrinsics
from app.llvm_intrinsics import (
    Address,
    f64_from_bits,
    inner,
    int64,
    keep_compiled,
    load_u64,
    short_entry,
    store_f64,
    store_u8,
)
from app.telemetry import metric_definitions, request_id
from app.telemetry.metric_definitions import BUCKETS
from app.telemetry.request_id import DIGITS, PREFIX, write_number

HEADER_TEMPLATE: Final[Any] = bytearray(
    b"x-request-id: %b-%b\r\nserver-timing: parse;dur=0.000, queue;dur=0.000, kernel;dur=0.000, encode;dur=0.000\r\n"
    % (PREFIX.encode(), b"0" * DIGITS)
)
"""The header lines that are filled in for one answer; they are copied before the next one."""
HEADER_TEMPLATE_AT: Final = np.frombuffer(
    HEADER_TEMPLATE, np.uint8
).ctypes.data  # an argument of the calls, since compiled code is kept for other processes
_ID_END: Final = HEADER_TEMPLATE.index(b"\r\n")
_PARSE, _QUEUE, _KERNEL, _ENCODE = (
    HEADER_TEMPLATE.index(name) + len(name)
    for name in (b"parse;dur=0.", b"queue;dur=0.", b"kernel;dur=0.", b"encode;dur=0.")
)
_SHORT_S: Final = 1e-3
"""Requests that took less have their times written as three digits of microseconds."""

# Places in the table of addresses of the cells of one kind of gathers.
CELLS: Final = 7
REQUESTS, TIMES, ROUTES, PREDICTED, MEASURED, RECEIVED, SENT = range(CELLS)
"""TIMES has the buckets side by side, one more than there are bounds, then the sum of all seconds and of each stage."""
_BOUNDS: Final = np.array(BUCKETS)
_STAGES: Final = len(BUCKETS) + 2


@inner
def _put_microseconds(place: Address, seconds: float) -> None:
    """Write less than a millisecond as three digits of microseconds."""
    whole = int64(seconds * 1e6)
    store_u8(place, 48 + whole // 100)
    store_u8(place + 1, 48 + whole // 10 % 10)
    store_u8(place + 2, 48 + whole % 10)


@inner
def _write_header(
    at: Address,
    number: int,
    start: float,
    parsed: float,
    kernel: float,
    done: float,
    now: float,
) -> bool:
    """Write the id and the times of a request into the header lines at `at`; False, and nothing, if it took long."""
    if not now - start < _SHORT_S:
        return False
    write_number(at + _ID_END, number)
    _put_microseconds(at + _PARSE, parsed - start)
    _put_microseconds(at + _QUEUE, kernel - parsed)
    _put_microseconds(at + _KERNEL, done - kernel)
    _put_microseconds(at + _ENCODE, now - done)
    return True


@inner
def _increment(cell: Address, number: float) -> None:
    """Add `number` to the float64 at the address `cell`."""
    store_f64(cell, f64_from_bits(load_u64(cell)) + number)


@short_entry
def _add(
    table: Address,
    start: float,
    parsed: float,
    kernel: float,
    done: float,
    finished: float,
    predicted: float,
    received: int,
    sent: int,
) -> None:
    """Count a gather in the cells whose addresses stand at `table`, 0 for those that it has not."""
    seconds = finished - start
    _increment(load_u64(table + 8 * REQUESTS), 1.0)
    times = load_u64(table + 8 * TIMES)
    bucket = 0
    while bucket < len(_BOUNDS) and _BOUNDS[bucket] < seconds:
        bucket += 1
    _increment(times + 8 * bucket, 1.0)
    timings = times + 8 * _STAGES
    _increment(timings - 8, seconds)
    _increment(timings, parsed - start)
    _increment(timings + 8, kernel - parsed)
    _increment(timings + 16, done - kernel)
    _increment(timings + 24, finished - done)
    _increment(load_u64(table + 8 * ROUTES), 1.0)
    if load_u64(table + 8 * PREDICTED) != 0:
        _increment(load_u64(table + 8 * PREDICTED), predicted)
        _increment(load_u64(table + 8 * MEASURED), done - kernel)
    _increment(load_u64(table + 8 * RECEIVED), received)
    _increment(load_u64(table + 8 * SENT), sent)


@short_entry
def _answer(
    at: Address,
    table: Address,
    number: int,
    start: float,
    parsed: float,
    kernel: float,
    done: float,
    finished: float,
    predicted: float,
    received: int,
    sent: int,
) -> bool:
    """`_write_header` and `_add`; False, and nothing, if the request took long."""
    if not _write_header(at, number, start, parsed, kernel, done, finished):
        return False
    _add(table, start, parsed, kernel, done, finished, predicted, received, sent)
    return True


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is counted."""
    keep_compiled(cache_dir, "increments", (llvm_intrinsics, metric_definitions, request_id), (_answer, _add))


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, what requests use."""
    started = perf_counter()
    compiled()
    if progress is not None:
        progress(f"request metrics ready after {perf_counter() - started:.2f} s")


@cache
def compiled() -> tuple[Callable[..., bool], Callable[..., None]]:
    """`answer` and `add`, without Numba's search for a signature that fits.

    add(table, start, parsed, kernel, done, finished, predicted, received, sent) counts a gather in the cells whose
    addresses stand at `table`. The times are seconds of `perf_counter`, `predicted` is seconds, the others are bytes.
    answer(HEADER_TEMPLATE_AT, table, number, ...) also writes into HEADER_TEMPLATE; for a request that took long it
    does nothing and returns False.
    """
    integer, seconds = types.int64, types.float64
    counted = (*(seconds,) * 6, integer, integer)
    _add.compile((integer, *counted))
    _answer.compile((integer, integer, integer, *counted))
    for dispatcher in (_answer, _add):
        dispatcher.disable_compile()  # a request never compiles
    answer, add = (dispatcher.overloads[dispatcher.signatures[0]].entry_point for dispatcher in (_answer, _add))
    return answer, add

"""What is told and counted of a gather that was answered, in one call of compiled code.

Its id and its times are written into the header lines that most answers have, and added to the cells of its metrics
(see `counters`), in the memory that other processes read. To do so in Python, number by number, took a twentieth of a
small request's time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numpy as np
from numba import types

from app import llvm_intrinsics
from app.llvm_intrinsics import float_of, inner, keep_compiled, put_1, put_double, word
from app.telemetry import prometheus_text
from app.telemetry.prometheus_text import BUCKETS

PREFIX: Final = secrets.token_hex(6)
"""What the ids of this process's requests begin with."""
_ID_DIGITS: Final = 10
HEADER_TEMPLATE: Final[Any] = bytearray(
    b"x-request-id: %b-%b\r\nserver-timing: parse;dur=0.000, queue;dur=0.000, kernel;dur=0.000, encode;dur=0.000\r\n"
    % (PREFIX.encode(), b"0" * _ID_DIGITS)
)
"""The header lines that are filled in. Whoever has them filled in takes a copy before the next request."""
HEADER_TEMPLATE_AT: Final = np.frombuffer(
    HEADER_TEMPLATE, np.uint8
).ctypes.data  # handed over: compiled code outlives the process
_ID_END: Final = HEADER_TEMPLATE.index(b"\r\n")
_PARSE, _QUEUE, _KERNEL, _ENCODE = (
    HEADER_TEMPLATE.index(name) + len(name)
    for name in (b"parse;dur=0.", b"queue;dur=0.", b"kernel;dur=0.", b"encode;dur=0.")
)
_SHORT_S: Final = 1e-3  # what is told in whole microseconds, of three digits

# The cells of a kind of gathers, as `add` finds their addresses.
CELLS: Final = 7
REQUESTS, TIMES, ROUTES, PREDICTED, MEASURED, RECEIVED, SENT = range(CELLS)
"""TIMES has the buckets side by side, one more than there are bounds, then the sum of all seconds and of each stage."""
_BOUNDS: Final = np.array(BUCKETS)
_STAGES: Final = len(BUCKETS) + 2

_njit: Any = numba.njit
_short: Any = _njit(no_cfunc_wrapper=True)  # with the GIL: to let it go takes longer than all these do


def request_id(number: int) -> str:
    """The id of a request that came without one, the `number`th of this process."""
    return f"{PREFIX}-{number % 16**_ID_DIGITS:0{_ID_DIGITS}x}"


@inner
def _put_part(place, seconds):  # type: ignore[no-untyped-def]
    """Write less than a millisecond as three digits of microseconds."""
    whole = np.int64(seconds * 1e6)
    put_1(place, 48 + whole // 100)
    put_1(place + 1, 48 + whole // 10 % 10)
    put_1(place + 2, 48 + whole % 10)


@inner
def _tell(at, number, start, parsed, kernel, done, now):  # type: ignore[no-untyped-def]
    """Write the `number` and the times of a request into the lines at `at`; False, and nothing, if it took long."""
    if not now - start < _SHORT_S:
        return False
    place = at + _ID_END
    for _ in range(_ID_DIGITS):
        place -= 1
        digit = number & 15
        number >>= 4
        put_1(place, digit + (48 if digit < 10 else 87))
    _put_part(at + _PARSE, parsed - start)
    _put_part(at + _QUEUE, kernel - parsed)
    _put_part(at + _KERNEL, done - kernel)
    _put_part(at + _ENCODE, now - done)
    return True


@inner
def _raise(cell, number):  # type: ignore[no-untyped-def]
    put_double(cell, float_of(word(cell)) + number)


@_short
def _add(kind, start, parsed, kernel, done, over, predicted, received, sent):  # type: ignore[no-untyped-def]
    """Count a gather under the cells whose addresses lie at `kind`, 0 for those that it has not."""
    seconds = over - start
    _raise(word(kind + 8 * REQUESTS), 1.0)
    times = word(kind + 8 * TIMES)
    bucket = 0
    while bucket < len(_BOUNDS) and _BOUNDS[bucket] < seconds:
        bucket += 1
    _raise(times + 8 * bucket, 1.0)
    timings = times + 8 * _STAGES
    _raise(timings - 8, seconds)
    _raise(timings, parsed - start)
    _raise(timings + 8, kernel - parsed)
    _raise(timings + 16, done - kernel)
    _raise(timings + 24, over - done)
    _raise(word(kind + 8 * ROUTES), 1.0)
    if word(kind + 8 * PREDICTED) != 0:
        _raise(word(kind + 8 * PREDICTED), predicted)
        _raise(word(kind + 8 * MEASURED), done - kernel)
    _raise(word(kind + 8 * RECEIVED), received)
    _raise(word(kind + 8 * SENT), sent)


@_short
def _answer(at, kind, number, start, parsed, kernel, done, over, predicted, received, sent):  # type: ignore[no-untyped-def]
    """`_tell` and `_add`, unless the first cannot."""
    if not _tell(at, number, start, parsed, kernel, done, over):
        return False
    _add(kind, start, parsed, kernel, done, over, predicted, received, sent)
    return True


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is counted."""
    keep_compiled(cache_dir, "moments", (llvm_intrinsics, prometheus_text), (_answer, _add))


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, what requests use."""
    started = perf_counter()
    compiled()
    if progress is not None:
        progress(f"request metrics ready after {perf_counter() - started:.2f} s")


@cache
def compiled() -> tuple[Callable[..., bool], Callable[..., None]]:
    """`answer` and `add`, without Numba's search for a signature that fits.

    add(kind, start, parsed, kernel, done, over, predicted, received, sent) counts a gather under the cells whose
    addresses lie at `kind`. Moments are in seconds of `perf_counter`, as `predicted`.
    answer(HEADER_TEMPLATE_AT, kind, number, ...) also writes into HEADER_TEMPLATE; it is false, and has done nothing,
    for what took long.
    """
    whole, moment = types.int64, types.float64
    counted = (*(moment,) * 6, whole, whole)
    _add.compile((whole, *counted))
    _answer.compile((whole, whole, whole, *counted))
    for dispatcher in (_answer, _add):
        dispatcher.disable_compile()  # a request never compiles
    answer, add = (dispatcher.overloads[dispatcher.signatures[0]].entry_point for dispatcher in (_answer, _add))
    return answer, add

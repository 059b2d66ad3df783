"""Atomic integers, the clock and the C library's waits, for compiled code that threads share.

Every atomic operation is sequentially consistent, as its name says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numba.core.cgutils
from llvmlite import ir
from numba import types

from app.compilation.intrinsics import Address, Builder, intrinsic
from app.kernels.numba_cpu.memory_intrinsics import item_pointer

_cgutils: Any = numba.core.cgutils
_int64: Final = types.int64
_INT64: Final = ir.IntType(64)
_CLOCK_MONOTONIC: Final = 1
"""The value of CLOCK_MONOTONIC in Linux's <time.h>."""


def _load(builder: Builder, base: Any, place: Any) -> Any:
    return builder.load_atomic(item_pointer(builder, base, place), "seq_cst", 8)


def _read_modify_write(operation: str) -> Callable[[Address, int, int], int]:
    def build(builder: Builder, base: Any, place: Any, value: Any) -> Any:
        return builder.atomic_rmw(operation, item_pointer(builder, base, place), value, "seq_cst")

    change: Callable[[Address, int, int], int] = intrinsic(_int64, (_int64,) * 3, build)
    return change


def _compare_exchange(builder: Builder, base: Any, place: Any, old: Any, new: Any) -> Any:
    pointer = item_pointer(builder, base, place)
    return builder.extract_value(builder.cmpxchg(pointer, old, new, "seq_cst", "seq_cst"), 1)


def _clock(builder: Builder) -> Any:
    pair, number = ir.ArrayType(_INT64, 2), ir.IntType(32)
    room = _cgutils.alloca_once(builder, pair)
    kind = ir.FunctionType(number, [number, room.type])
    function = _cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
    builder.call(function, [number(_CLOCK_MONOTONIC), room])
    seconds, rest = (builder.extract_value(builder.load(room, typ=pair), at) for at in (0, 1))
    return builder.add(builder.mul(seconds, _INT64(1_000_000_000)), rest)


def _pause(builder: Builder) -> None:
    if os.uname().machine == "x86_64":
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(_cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])


load_seq_cst: Final[Callable[[Address, int], int]] = intrinsic(_int64, (_int64, _int64), _load)
"""(base, place): return the int64 at base + 8 * place."""
fetch_add_seq_cst: Final = _read_modify_write("add")
exchange_seq_cst: Final = _read_modify_write("xchg")
fetch_umin_seq_cst: Final = _read_modify_write("umin")
"""(base, place, value): change the int64 at base + 8 * place. Returns its old value.

The first function adds `value` to it, the second replaces it, and the third stores the smaller of the two as unsigned.
"""
compare_exchange_seq_cst: Final[Callable[[Address, int, int, int], bool]] = intrinsic(
    types.boolean, (_int64,) * 4, _compare_exchange
)
"""(base, place, old, new): set the int64 to `new` if it equals `old`. Returns whether it did."""
nanoseconds: Final[Callable[[], int]] = intrinsic(_int64, (), _clock)
"""Return the nanoseconds of a monotonic clock."""
pause: Final[Callable[[], None]] = intrinsic(types.none, (), _pause)
"""Spin-loop hint: leaves the core's resources to its sibling thread."""
sem_wait: Final[Any] = types.ExternalFunction("sem_wait", types.int32(_int64))
sem_post: Final[Any] = types.ExternalFunction("sem_post", types.int32(_int64))
sched_yield: Final[Any] = types.ExternalFunction("sched_yield", types.int32())

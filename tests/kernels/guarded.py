"""Kernels between guard pages: `python -m tests.kernels.guarded KERNEL PLANS CASES SEED [CACHE_DIR [CHUNK]]`.

PLANS is one of `PLANS`, "gather" for GatherND and Gather, "gather_elements" for GatherElements, and so on, or several
with commas between, one after the other.

Data, indices, updates and output each lie against a page that may not be touched, now before them, now behind; inputs
are seen through read-only pages. An access outside, or a write to an input, ends this process with a signal, which is
why the test runs it apart.

Cases come in chunks, each from a seed of its own and named on standard output before it begins: one that failed runs
again alone with CASES 1000 and its number as CHUNK.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import can_fill
from app.kernels.numba_cpu.chunked_job import shared_team
from app.kernels.numba_cpu.thresholds import WAKE_FROM
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.tensors.dtypes import INTEGERS
from tests.kernels.loops import (
    gather_by_loops,
    gather_elements_by_loops,
    scatter_by_loops,
    scatter_elements_by_loops,
)
from tests.kernels.reference import (
    CARRIERS,
    EXTREMES,
    random_elements_plan,
    random_plan,
    random_scatter_elements_plan,
    random_scatter_plan,
)


def random_plan_to_fill(source: random.Random) -> GatherPlan:
    """One whose slices kernels fill by themselves."""
    while True:
        plan = random_plan(source)
        if can_fill(plan):
            return plan


def fill_by_loops(
    plan: GatherPlan, data: NDArray[Any], indices: NDArray[np.int64], out: NDArray[np.uint8], fill: NDArray[Any]
) -> int:
    """Gather tuple by tuple, with `fill` for those that are out of bounds: how many components are."""
    part = plan.slice_items * plan.item_size
    block = len(data) // plan.batches if plan.batches else 0
    one = GatherPlan(1, 1, plan.dims, plan.slice_items, plan.item_size, False, plan.wrap)
    for number in range(plan.batches * plan.tuples):
        batch = number // plan.tuples
        source, components = data[batch * block :][:block], indices[number * plan.depth :][: plan.depth]
        if gather_by_loops(one, source, components, out[number * part :][:part]) >= 0:
            out[number * part :][:part] = fill.view(np.uint8)
    sizes = np.resize(np.array(plan.dims, np.int64), len(indices))
    return int(np.count_nonzero((indices >= sizes) | (indices < (-sizes if plan.wrap else 0))))


CHUNK = 1000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_NONE = 0
_FIXED = 0x10
_PAGE = mmap.PAGESIZE
_POOL = 1 << 24
_FILL = 0xA5
_EDGE = 64
Bytes = NDArray[np.uint8]
AnyPlan = GatherPlan | GatherElementsPlan | ScatterNDPlan | ScatterElementsPlan


@dataclass(frozen=True)
class Plans:
    """The plans of one type: how to make one at random, and its reference.

    The reference takes plan, data, indices as int64, the bytes of the output, and updates where the plan has them, and
    returns the first bad component.
    """

    random: Callable[[random.Random], AnyPlan]
    by_loops: Callable[..., int]
    fills: bool = False
    """Whether bad components are filled for, and counted in place of the first one."""


PLANS: Mapping[str, Plans] = {
    "gather": Plans(random_plan, gather_by_loops),
    "fill": Plans(random_plan_to_fill, fill_by_loops, fills=True),
    "gather_elements": Plans(random_elements_plan, gather_elements_by_loops),
    "scatternd": Plans(random_scatter_plan, scatter_by_loops),
    "scatter_elements": Plans(random_scatter_elements_plan, scatter_elements_by_loops),
}


class Guarded:
    """Pages with one on either side that faults, seen twice: `front` as the kernel may use them, `back` writable."""

    def __init__(self, pages: int, writable: bool) -> None:
        self.size = pages * _PAGE
        file = os.memfd_create("guarded")
        os.ftruncate(file, self.size)
        guards = _map(None, self.size + 2 * _PAGE, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        self.back = _bytes_at(_map(None, self.size, access, mmap.MAP_SHARED, file), self.size)
        if not writable:
            access = mmap.PROT_READ
        self.front = _bytes_at(_map(guards + _PAGE, self.size, access, mmap.MAP_SHARED | _FIXED, file), self.size)
        self.front.flags.writeable = writable
        os.close(file)

    def start(self, size: int, at_end: bool) -> int:
        """Where `size` bytes begin that lie against one of the guards."""
        return self.size - size if at_end else 0


@cache
def guarded(pages: int, role: str) -> Guarded:
    """Memory for the data, the indices or the output."""
    return Guarded(pages, role == "output")


def room_for(size: int, role: str) -> Guarded:
    """Memory of that many bytes, with less than a page to spare up to 16 pages, else less than half."""
    pages = max(1, -(-size // _PAGE))
    return guarded(pages if pages <= 16 else 1 << (pages - 1).bit_length(), role)


def _map(address: int | None, size: int, access: int, flags: int, file: int) -> int:
    found: int | None = _LIBC.mmap(address, size, access, flags, file, 0)
    assert found not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return found


def _bytes_at(address: int, size: int) -> Bytes:
    room: Any = (ctypes.c_char * size).from_address(address)
    array: Bytes = np.frombuffer(room, np.uint8)
    return array


class Fuzz:
    """Random cases of one type of plan for one kernel, each compared with the reference."""

    def __init__(self, kernel: Any, plans: Plans) -> None:
        self._kernel = kernel
        self._plans = plans
        chance = np.random.default_rng(0)
        self._data: Bytes = chance.integers(0, 256, _POOL, np.uint8)
        self._numbers = chance.integers(0, 1 << 63, _POOL // 16, np.int64)
        self._expected = np.zeros(_POOL, np.uint8)

    def chunk(self, seed: int, number: int, count: int) -> None:
        """`count` cases; raises AssertionError with the first that is wrong."""
        source = random.Random(f"{seed}/{number}")
        for at in range(count):
            plan = self._plans.random(source)
            wrong = self._case(plan, source)
            assert not wrong, f"case {at} of chunk {number} of seed {seed}: {plan}: {wrong}"

    def _case(self, plan: AnyPlan, source: random.Random) -> str:
        carrier = np.dtype(CARRIERS[plan.item_size])
        ends = source.getrandbits(3)
        size = plan.data_items * plan.item_size
        memory = room_for(size, "data")
        start = memory.start(size, bool(ends & 1))
        pool = source.randrange(_POOL - size + 1)
        memory.back[start : start + size] = self._data[pool : pool + size]
        data = memory.front[start : start + size].view(carrier)

        values = self._indices(plan, source)
        memory = room_for(values.nbytes, "indices")
        start = memory.start(values.nbytes, bool(ends & 2))
        memory.back[start : start + values.nbytes] = values.view(np.uint8)
        indices = memory.front[start : start + values.nbytes].view(values.dtype)

        updates = self._updates(plan, source)
        size = plan.output_bytes
        memory = room_for(size, "output")
        start = memory.start(size, bool(ends & 4))
        memory.back[max(0, start - _EDGE) : start + size + _EDGE] = _FILL
        out = memory.front[start : start + size]

        expected = self._expected[:size]
        bad = self._plans.by_loops(plan, data, indices.astype(np.int64), expected, *updates)
        first = self._run(plan, data, indices, out.view(carrier), source, updates)
        if first != bad:
            return f"first bad component, or how many, {first}, not {bad}"
        if (memory.back[max(0, start - _EDGE) : start] != _FILL).any():
            return "bytes written before the output"
        if (memory.back[start + size : start + size + _EDGE] != _FILL).any():
            return "bytes written behind the output"
        if (bad < 0 or self._plans.fills) and not np.array_equal(out, expected):
            return f"other bytes, the first at {int((out != expected).argmax())}"
        return ""

    def _updates(self, plan: AnyPlan, source: random.Random) -> list[NDArray[Any]]:
        """The updates of a scatter, or the slice to fill with, against a guard; none of another plan."""
        if isinstance(plan, ScatterNDPlan | ScatterElementsPlan):
            size = plan.update_items * plan.item_size
        elif self._plans.fills:
            size = plan.slice_items * plan.item_size
        else:
            return []
        memory = room_for(size, "updates")
        start = memory.start(size, source.random() < 0.5)
        pool = source.randrange(_POOL - size + 1)
        memory.back[start : start + size] = self._data[pool : pool + size]
        return [memory.front[start : start + size].view(CARRIERS[plan.item_size])]

    def _run(
        self,
        plan: AnyPlan,
        data: NDArray[Any],
        indices: NDArray[Any],
        out: NDArray[Any],
        source: random.Random,
        updates: list[NDArray[Any]],
    ) -> int:
        """The kernel by one thread or, now and then, by several."""
        threads = 1
        if self._kernel.splits:
            shared_team().settings["wake_from"] = source.choice((0, WAKE_FROM))
            if source.random() < 0.1:
                threads = source.randint(2, 4)
        given = _further(plan, updates)
        first: int = self._kernel.run(plan, data, indices, out, threads, **given)
        if not self._plans.fills:
            return first
        assert first == -1
        return int(given["further"]["replaced"][0])

    def _indices(self, plan: AnyPlan, source: random.Random) -> NDArray[Any]:
        """Good ones, far apart or close together; in two cases of five some are bad, at random places.

        Now and then they are of another type than int64, where that holds them.
        """
        count = plan.index_items
        sizes = np.array(plan.dims, np.int64)
        spread = np.maximum(sizes if not plan.wrap else 2 * sizes.astype(np.uint64), 1).astype(np.uint64)
        pool = source.randrange(len(self._numbers) - count + 1)
        numbers = self._numbers[pool : pool + count].astype(np.uint64).reshape(-1, plan.depth)
        if source.random() < 0.2:
            numbers = numbers >> np.uint64(source.randrange(50, 64))
        values = (numbers % spread).astype(np.int64)
        if plan.wrap:
            values -= sizes
        values = values.reshape(-1)
        for _ in range(source.choice((0, 0, 0, 1, 3)) if count else 0):
            place = source.randrange(count)
            size = plan.dims[place % plan.depth]
            values[place] = source.choice((size, -size - 1, size + 1, size if plan.wrap else -1, *EXTREMES))
        if source.random() < 0.3:
            other = np.iinfo(source.choice(INTEGERS))
            if count and other.min <= values.min() and values.max() <= other.max:
                return values.astype(other.dtype)
        return values


def _further(plan: AnyPlan, updates: list[NDArray[Any]]) -> dict[str, Any]:
    """The argument `further` of a kernel that gets updates, or a slice to fill with."""
    if updates and isinstance(plan, GatherPlan):
        return {"further": {"fill": updates[0], "replaced": np.zeros(1, np.int64)}}
    return {"further": {"updates": updates[0]}} if updates else {}


def short(kernel: Any, plans: Plans, seed: int) -> None:
    """Arrays of fewer items than their plan says, each against a guard: refused, and nothing of them touched."""
    source = random.Random(seed)
    for number in range(3000):
        plan = plans.random(source)
        carrier = np.dtype(CARRIERS[plan.item_size])
        roles = ["data", "indices", "output"]
        counts = [plan.data_items, plan.index_items, plan.output_items]
        dtypes = [carrier, np.dtype(source.choice(INTEGERS)), carrier]
        if isinstance(plan, ScatterNDPlan | ScatterElementsPlan):
            roles.append("updates")
            counts.append(plan.update_items)
            dtypes.append(carrier)
        which = source.choice([at for at, count in enumerate(counts) if count] or [0])
        if not counts[which]:
            continue
        counts[which] -= source.choice((1, counts[which], source.randint(1, counts[which])))
        at_end = source.random() < 0.5
        arrays = []
        for role, count, dtype in zip(roles, counts, dtypes, strict=True):
            memory = room_for(count * dtype.itemsize, role)
            start = memory.start(count * dtype.itemsize, at_end)
            memory.back[start : start + count * dtype.itemsize] = 0
            arrays.append(memory.front[start : start + count * dtype.itemsize].view(dtype))
        try:
            kernel.run(plan, *arrays[:3], source.choice((1, 1, 2)), **_further(plan, arrays[3:]))
        except TypeError:
            continue
        raise AssertionError(f"case {number} was not refused: {plan}, {counts}")


def main(arguments: list[str]) -> None:
    """Run what the command line says."""
    name, kind, what, seed, *rest = arguments
    kernel = importlib.import_module(name if "." in name else f"app.kernels.{name}")
    if rest and rest[0]:
        kernel.configure(Path(rest[0]))
        kernel.warm()
        settings = shared_team().settings
        settings["least_tuples"], settings["nontemporal_from"] = 1, 1 << 22  # smaller output past the caches
    for one in kind.split(","):
        run(kernel, PLANS[one], what, int(seed), int(rest[1]) if len(rest) > 1 else 0)


def run(kernel: Any, plans: Plans, what: str, seed: int, first: int) -> None:
    """Arrays that are too short, or `what` is how many cases: in chunks from number `first` on."""
    if what == "short":
        short(kernel, plans, seed)
    else:
        fuzz = Fuzz(kernel, plans)
        for begin in range(0, int(what), CHUNK):
            number = first + begin // CHUNK
            sys.stdout.write(f"chunk {number}\n")
            sys.stdout.flush()
            fuzz.chunk(seed, number, min(CHUNK, int(what) - begin))


if __name__ == "__main__":
    main(sys.argv[1:])

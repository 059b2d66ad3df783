"""The gather in one function compiled by Numba: what runs on a CPU.

One function serves every plan, because each compiled one costs start-up time: element types and item sizes do not
matter to it (slices are so many bytes), tuples of up to five components have a loop each and deeper ones one more, and
the whole has one signature, so that no request can meet a combination that was not compiled.

It runs without the GIL, by itself or with the helpers of a `ThreadTeam`, chunk by chunk (`gather_chunk`). Chunks write
disjoint stretches of the output, and the first bad component is the least of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app import inner_function_compiler, kernels, llvm_intrinsics, remembered_call_types
from app.bounded_cache import BoundedCache
from app.kernels import ALWAYS_AHEAD, check_lookup
from app.kernels.check_arrays import check_arrays, check_fill
from app.kernels.numba_cpu.cache_sizes import largest_cache
from app.kernels.numba_cpu.copy_slices import NONTEMPORAL_BYTES
from app.kernels.numba_cpu.gather_chunk import gather_chunk
from app.kernels.numba_cpu.gather_job import (
    BATCHES,
    BATCHES_PER_SET,
    BLOCK,
    BROADCAST_INDICES,
    FILLS,
    INDEX_TYPE,
    NONTEMPORAL,
    NOT_AHEAD,
    REPEATED_INT64,
    STRIDE,
    TUPLES,
    WHOLE_BATCHES,
    WRAP_NEGATIVE,
    write_job,
)
from app.kernels.numba_cpu.memory_intrinsics import load_item, stack_scratch, store_item
from app.kernels.numba_cpu.ndarray_abi import (
    ArrayHeader,
    address,
    check_layout,
    checked_product,
    header,
    index_type_if_usable,
    length,
)
from app.kernels.numba_cpu.run_job import (
    AHEAD_BYTES,
    ARRAY_TYPE,
    GATHER_CHUNK_ADDRESS,
    LEAST_TUPLES,
    NONTEMPORAL_FROM,
    WAKE_FROM,
    carry_out,
    take_chunks,
)
from app.kernels.numba_cpu.split_over_threads import (
    UNFINISHED,
    ThreadTeam,
    UnfinishedGather,
    acquire,
    is_worth_sharing,
    job_of,
    join,
    leave,
    setting,
    shut_down,
    wait_for_helpers,
)
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH, gather_narrow_chunk
from app.llvm_intrinsics import Address
from app.operators import backward_plan, scatter_plan
from app.operators.gather_plan import GatherPlan, Plan
from app.remembered_call_types import RememberingCompiler
from app.tensors import dtypes, scatter_call

name = "numba"
splits = True

_COMPILED_FROM: Final = (
    inner_function_compiler,
    llvm_intrinsics,
    remembered_call_types,
    kernels,
    check_lookup,
    backward_plan,
    scatter_plan,
    dtypes,
    scatter_call,
)
"""What is compiled has functions and numbers of these, beside those of the files of this folder."""

CACHED_BYTES: Final = 1 << 21
"""Data of so many bytes are in a cache anyway: to ask for them ahead takes more than it brings (`benchmarks/README.md`,
as for all figures here)."""
CHUNKS_PER_THREAD: Final = 4
"""So that all end together: a helper that the system puts aside keeps all waiting for one chunk."""
_LONG_CHUNK_BYTES: Final = 1 << 14
"""Of output, from which on a chunk need not have the least number of tuples: it takes much longer than to be taken."""
REFUSED: Final = -2
"""In place of a component: the arrays are not as the plan says."""

# What the settings of the team are unless they are changed.
_SETTINGS: Final = (BLOCK, NONTEMPORAL_BYTES)
USUAL_WAKE_FROM: Final = 200_000
"""Until the machine is measured: some 80 µs on an EPYC."""
_TIMEOUT_NS: Final = 500_000
_HELP, _SHUT_DOWN, _POLL = range(3)
"""What `_attend` is called for."""
CHUNK_OPTIONS: Final[dict[str, Any]] = {
    "cache": True,
    "error_model": "numpy",
    "pipeline_class": RememberingCompiler,
}
"""How Numba compiles a function for chunks."""
ENTRY_OPTIONS: Final[dict[str, Any]] = CHUNK_OPTIONS | {"nogil": True, "no_cfunc_wrapper": True}
"""How it compiles a function that Python calls."""
OTHER_PLANS: Final[dict[type, Callable[..., int]]] = {}
"""The functions for plans of other types, to which `run` hands them on."""


def configure(cache_dir: Path) -> Path:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled.

    Returns its folder.
    """
    if _dispatchers.cache_info().currsize:
        raise RuntimeError("the kernel has its cache directory already: configure it first")
    # Numba's cache sees a change of the compiled function's own file only, so the folder is named by all of them.
    own = map(str, Path(__file__).parent.glob("*.py"))
    folder = llvm_intrinsics.folder_of(cache_dir, "numba", [*own, *(str(one.__file__) for one in _COMPILED_FROM)])
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    _dispatchers()
    return folder


def ready() -> bool:
    """Whether the kernel is compiled."""
    return _ready.cache_info().currsize > 0


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, all that `run` ever uses."""
    started = perf_counter()
    _ready()
    if progress is not None:
        progress(f"gather kernel ready after {perf_counter() - started:.2f} s")


def run(
    plan: Plan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    further: Mapping[str, NDArray[Any]] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`."""
    if type(plan) is not GatherPlan:
        return _run_other(plan, data, indices, out, threads, may_leave_unfinished, **(further or {}))
    entry, team = _ready()
    if threads > 1:
        prepare(team, threads)
    fills = further is not None
    sizes = _sizes.get(plan.dims)
    if further is not None:
        sizes = _sizes_and_fill(plan, **further)
    elif sizes is None:
        sizes = _sizes[plan.dims] = np.array(plan.dims, dtype=np.int64)
    first: int = entry(
        data,
        indices,
        out,
        sizes,
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        plan.batches_per_set,
        plan.wrap,
        fills,
        team.address,
        threads - 1,
        may_leave_unfinished,
    )
    if first < -1:
        if first == UNFINISHED:
            raise UnfinishedGather(team, (data, indices, out, sizes, further))
        check_arrays(plan, data, indices, out)
        raise TypeError("the plan has a size that no array can have")
    return first


def _sizes_and_fill(plan: GatherPlan, fill: NDArray[Any], replaced: NDArray[np.int64]) -> NDArray[np.int64]:
    """`dims`, and behind them the addresses that FILLS asks for."""
    check_fill(plan, fill, replaced)
    return np.array((*plan.dims, fill.ctypes.data, replaced.ctypes.data), dtype=np.int64)


def _run_other(plan: Plan, *arguments: Any, **further: NDArray[Any]) -> int:
    function = OTHER_PLANS.get(type(plan))
    if function is None:
        raise TypeError(f"no function for a {type(plan).__name__}")
    return function(plan, *arguments, **further)


def prepare(team: ThreadTeam, threads: int) -> None:
    """Have helpers for so many threads, and the team free again if what it was left with is over."""
    if threads - 1 > team.helpers:
        team.grow(threads - 1)
    if team.unfinished:
        for left in tuple(team.unfinished):
            left.free_team()


def tune(wake_from: int, ahead_bytes: int) -> None:
    """Set what depends on the machine: from how much work on helpers are woken, and up to which width slices are asked
    for ahead. See `measured_rates`.
    """
    settings = _ready()[1].settings
    settings[WAKE_FROM], settings[AHEAD_BYTES] = wake_from, ahead_bytes


def thread_team() -> ThreadTeam:
    """The threads that help with gathers over several of them."""
    return _ready()[1]


_sizes: Final[BoundedCache[tuple[int, ...], NDArray[np.int64]]] = BoundedCache(4096)
"""`dims` of plans, as the compiled code takes them."""


@cache
def _dispatchers() -> tuple[Any, Any]:
    """The functions to be compiled, tied to the cache directory that is set now."""
    compiler: Any = njit(**ENTRY_OPTIONS)
    return compiler(_gather), compiler(_attend)


def _compile_chunk_function(function: Callable[[Address, int], int]) -> Any:
    integer = types.int64
    compiler: Any = cfunc(integer(integer, integer), **CHUNK_OPTIONS)
    return compiler(function)


@cache
def compile_chunk() -> Any:
    """`gather_chunk`, compiled, which takes longer than all others together: two processes share the work."""
    return _compile_chunk_function(gather_chunk)


@cache
def compile_others() -> tuple[Any, Any, Any]:
    """`gather_narrow_chunk`, `_gather` and `_attend`, compiled.

    Raises RuntimeError where arrays are not laid out as they take it.
    """
    check_layout()
    integer, flag = types.int64, types.boolean
    gather, attend = _dispatchers()
    gather.compile((*(header,) * 4, *(integer,) * 5, flag, flag, integer, integer, flag))
    attend.compile((integer, integer))
    for dispatcher in (gather, attend):
        dispatcher.disable_compile()
    return _compile_chunk_function(gather_narrow_chunk), gather, attend


@cache
def _ready() -> tuple[Any, ThreadTeam]:
    """`_gather` without the search for a signature that fits, and the team.

    There is one signature, and it takes any object: so `_gather` itself looks at what it is handed.
    """
    chunk = compile_chunk()
    narrow, gather, attend = compile_others()
    zeros_past_caches_from = max(NONTEMPORAL_BYTES, largest_cache() // 2)
    usual = _TIMEOUT_NS, USUAL_WAKE_FROM, ALWAYS_AHEAD, zeros_past_caches_from
    team = ThreadTeam(
        lambda team: attend(team, _HELP),
        lambda team: attend(team, _SHUT_DOWN),
        lambda team: attend(team, _POLL),
        (*_SETTINGS, chunk.address, narrow.address, id(np.ndarray), *usual),
    )
    return gather.overloads[gather.signatures[0]].entry_point, team


def _gather(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    sizes: ArrayHeader,
    batches: int,
    tuples: int,
    slice_items: int,
    item_size: int,
    batches_per_set: int,
    wrap: bool,
    fills: bool,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """The whole gather, with up to so many helpers: its first bad component, -1 or REFUSED.

    If it `may_leave_unfinished`, perhaps UNFINISHED.
    """
    kind = index_type_if_usable(data, indices, out, item_size, setting(team, ARRAY_TYPE))
    if kind == 0:
        return REFUSED
    depth = length(sizes) - (2 if fills else 0)
    axes = address(sizes)
    negative = batches | tuples | slice_items | batches_per_set
    items = checked_product(batches, slice_items)  # of data
    for axis in range(depth):
        negative |= load_item(axes, axis)
        items = checked_product(items, load_item(axes, axis))
    slices = checked_product(batches, tuples)
    broadcast = batches_per_set == 0
    total = tuples if broadcast else slices
    given = total  # tuples in indices
    if batches_per_set > 1:
        if batches % batches_per_set != 0:
            return REFUSED
        given = checked_product(batches // batches_per_set, tuples)
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or length(data) != items:
        return REFUSED
    if length(indices) != checked_product(given, depth) or length(out) != checked_product(slices, slice_items):
        return REFUSED
    width = slice_items * item_size
    data_bytes = items * item_size
    out_bytes = length(out) * item_size
    flags = 0
    if data_bytes <= CACHED_BYTES:
        flags |= NOT_AHEAD
    if broadcast:
        flags |= BROADCAST_INDICES
    if wrap:
        flags |= WRAP_NEGATIVE
    if fills:
        flags |= FILLS
        store_item(load_item(axes, depth + 1), 0, 0)
    if out_bytes > setting(team, NONTEMPORAL_FROM):
        flags |= NONTEMPORAL
    elif width > setting(team, AHEAD_BYTES):
        flags |= NOT_AHEAD
    size = total
    long = length(indices) + slices + out_bytes // 16 > setting(team, WAKE_FROM)
    split = helpers > 0 and total > 0 and is_worth_sharing(team, long) and acquire(team)
    job = stack_scratch()
    if split:
        job = job_of(team)
        if broadcast and batches > 0 and tuples < BLOCK * helpers:
            flags |= WHOLE_BATCHES
            total = batches
        size = max(total // (CHUNKS_PER_THREAD * (helpers + 1)), 1)
        if flags & WHOLE_BATCHES == 0:
            size = max(size, min(setting(team, LEAST_TUPLES), max(1, _LONG_CHUNK_BYTES // max(width, 1))))
            if not broadcast and batches > 1 and tuples < BLOCK:
                size = (size + tuples - 1) // tuples * tuples
    addresses = address(data), address(out), address(indices), axes
    write_job(job, addresses, depth, width, total, size, flags, setting(team, GATHER_CHUNK_ADDRESS))
    store_item(job, BATCHES, batches)
    store_item(job, TUPLES, tuples)
    store_item(job, STRIDE, data_bytes // batches if out_bytes > 0 else 0)
    store_item(job, BATCHES_PER_SET, batches_per_set if batches_per_set > 1 else 0)
    store_item(job, INDEX_TYPE, REPEATED_INT64 if kind == 8 and batches_per_set > 1 else kind)
    return carry_out(team, job, split, helpers, long, may_leave_unfinished)


def _attend(team: Address, what: int) -> int:
    """The life of a helper; or the end of all of theirs; or whether a gather that was left is over."""
    if what == _SHUT_DOWN:
        shut_down(team)
        return 0
    if what == _POLL:
        return wait_for_helpers(team, 0)
    epoch = join(team, 0)
    while epoch >= 0:
        take_chunks(team, False)
        leave(team)
        epoch = join(team, epoch)
    return 0

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
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app import kernels, llvm_intrinsics
from app.bounded_cache import BoundedCache
from app.compilation import numba_passes
from app.compilation.numba_passes import RememberingCompiler
from app.kernels import ALWAYS_AHEAD, check_lookup
from app.kernels.check_arrays import check_arrays, check_fill
from app.kernels.numba_cpu.copy_slices import NONTEMPORAL_BYTES
from app.kernels.numba_cpu.gather_chunk import gather_chunk, gather_job_at
from app.kernels.numba_cpu.memory_intrinsics import LINE, load_item, store_item
from app.kernels.numba_cpu.ndarray_abi import (
    ArrayHeader,
    address,
    check_layout,
    checked_product,
    header,
    index_type_if_usable,
    length,
)
from app.kernels.numba_cpu.shared_job import (
    AHEAD_BYTES,
    ARRAY_TYPE,
    GATHER_CHUNK_ADDRESS,
    LEAST_TUPLES,
    NONTEMPORAL_FROM,
    WAKE_FROM,
    stack_job,
    take_chunks,
)
from app.kernels.numba_cpu.shared_job import run as run_job
from app.kernels.numba_cpu.split_over_threads import (
    UNFINISHED,
    ThreadTeam,
    UnfinishedGather,
    join,
    leave,
    setting,
    shut_down,
    wait_for_helpers,
)
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH
from app.llvm_intrinsics import Address
from app.operators import backward_plan, scatter_plan
from app.operators.gather_plan import GatherPlan, Plan
from app.tensors import dtypes, operator_signature

name = "numba"
splits = True

_COMPILED_FROM: Final = (
    llvm_intrinsics,
    numba_passes,
    kernels,
    check_lookup,
    backward_plan,
    scatter_plan,
    dtypes,
    operator_signature,
)
"""What is compiled has functions and numbers of these, beside those of the files of this folder."""

CACHED_BYTES: Final = 1 << 21
"""Data of so many bytes are in a cache anyway: to ask for them ahead takes more than it brings (`benchmarks/README.md`,
as for all figures here)."""
_LONG_CHUNK_BYTES: Final = 1 << 14
"""Of output, from which on a chunk need not have the least number of tuples: it takes much longer than to be taken."""
REFUSED: Final = -2
"""In place of a component: the arrays are not as the plan says."""

_LEAST_TUPLES: Final = 256

# What the settings of the team are unless they are changed.
_SETTINGS: Final = (_LEAST_TUPLES, NONTEMPORAL_BYTES)
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
    dims = _dims.get(plan.dims)
    if dims is None:
        dims = _dims[plan.dims] = np.array(plan.dims, dtype=np.int64)
    fill, replaced = (0, 0) if further is None else _fill_addresses(plan, **further)
    sizes = (
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        plan.batches_per_set,
        plan.wrap,
        fill,
        replaced,
    )
    first: int = entry(data, indices, out, dims, sizes, team.address, threads - 1, may_leave_unfinished)
    if first < -1:
        if first == UNFINISHED:
            raise UnfinishedGather(team, (data, indices, out, dims, further))
        check_arrays(plan, data, indices, out)
        raise TypeError("the plan has a size that no array can have")
    return first


def _fill_addresses(plan: GatherPlan, fill: NDArray[Any], replaced: NDArray[np.int64]) -> tuple[Address, Address]:
    check_fill(plan, fill, replaced)
    return fill.ctypes.data, replaced.ctypes.data


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


_dims: Final[BoundedCache[tuple[int, ...], NDArray[np.int64]]] = BoundedCache(4096)
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
def compile_others() -> tuple[Any, Any]:
    """`_gather` and `_attend`, compiled.

    Raises RuntimeError where arrays are not laid out as they take it.
    """
    check_layout()
    integer, flag = types.int64, types.boolean
    gather, attend = _dispatchers()
    named_tuple: Any = types.NamedTuple
    sizes = named_tuple((*(integer,) * 5, flag, integer, integer), _Sizes)
    gather.compile((*(header,) * 4, sizes, integer, integer, flag))
    attend.compile((integer, integer))
    for dispatcher in (gather, attend):
        dispatcher.disable_compile()
    return gather, attend


@cache
def _ready() -> tuple[Any, ThreadTeam]:
    """`_gather` without the search for a signature that fits, and the team.

    There is one signature, and it takes any object: so `_gather` itself looks at what it is handed.
    """
    chunk = compile_chunk()
    gather, attend = compile_others()
    usual = _TIMEOUT_NS, USUAL_WAKE_FROM, ALWAYS_AHEAD
    team = ThreadTeam(
        lambda team: attend(team, _HELP),
        lambda team: attend(team, _SHUT_DOWN),
        lambda team: attend(team, _POLL),
        (*_SETTINGS, chunk.address, id(np.ndarray), *usual),
    )
    return gather.overloads[gather.signatures[0]].entry_point, team


class _Sizes(NamedTuple):
    """What `_gather` takes of a plan, and the addresses of a slice and of a count, or 0 (see `GatherJob.fill`)."""

    batches: int
    tuples: int
    slice_items: int
    item_size: int
    batches_per_set: int
    wrap: bool
    fill: Address
    replaced: Address


def _gather(
    data: ArrayHeader,
    indices: ArrayHeader,
    out: ArrayHeader,
    dims: ArrayHeader,
    plan: _Sizes,
    team: Address,
    helpers: int,
    may_leave_unfinished: bool,
) -> int:
    """The whole gather, with up to so many helpers: its first bad component, -1 or REFUSED.

    If it `may_leave_unfinished`, perhaps UNFINISHED. The addresses in `plan` are those of arrays that were checked.
    """
    index_type = index_type_if_usable(data, indices, out, plan.item_size, setting(team, ARRAY_TYPE))
    if index_type == 0:
        return REFUSED
    depth = length(dims)
    negative = plan.batches | plan.tuples | plan.slice_items | plan.batches_per_set
    items = checked_product(plan.batches, plan.slice_items)  # of data
    for axis in range(depth):
        size = load_item(address(dims), axis)
        negative |= size
        items = checked_product(items, size)
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or length(data) != items:
        return REFUSED
    sets = 1
    if plan.batches_per_set > 0:
        sets = plan.batches // plan.batches_per_set
        if sets * plan.batches_per_set != plan.batches:
            return REFUSED
    slices = checked_product(plan.batches, plan.tuples)
    if length(indices) != checked_product(checked_product(sets, plan.tuples), depth):
        return REFUSED
    if length(out) != checked_product(slices, plan.slice_items):
        return REFUSED
    width = plan.slice_items * plan.item_size
    out_bytes, data_bytes = length(out) * plan.item_size, items * plan.item_size
    if plan.fill != 0:
        store_item(plan.replaced, 0, 0)
    job_address = stack_job()
    job = gather_job_at(job_address)
    job.run_chunk = setting(team, GATHER_CHUNK_ADDRESS)
    # Nothing is copied to an output without items, but all components are checked.
    job.total = slices if plan.batches > 0 else sets * plan.tuples
    job.chunk_size = min(setting(team, LEAST_TUPLES), max(1, _LONG_CHUNK_BYTES // max(width, 1)))
    job.data = address(data)
    job.indices = address(indices)
    job.out = address(out)
    job.sizes = address(dims)
    job.depth = depth
    job.index_type = index_type
    job.tuples = plan.tuples
    job.batches_per_set = plan.batches_per_set
    job.stride = data_bytes // plan.batches if plan.batches > 0 else 0
    job.width = width if out_bytes > 0 else 0
    job.fill = plan.fill
    job.replaced = plan.replaced
    job.wrap = plan.wrap
    job.nontemporal = width >= LINE and out_bytes > setting(team, NONTEMPORAL_FROM)
    job.prefetches = out_bytes > 0 and data_bytes > CACHED_BYTES
    if width > setting(team, AHEAD_BYTES) and not job.nontemporal:
        job.prefetches = False
    work = length(indices) + slices + out_bytes // 16
    return run_job(team, job_address, helpers, work, may_leave_unfinished)


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

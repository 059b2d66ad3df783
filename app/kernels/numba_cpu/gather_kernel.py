"""The gather in one function compiled by Numba: what runs on a CPU.

One function serves every plan, because each compiled one costs start-up time: element types and item sizes do not
matter to it (slices are so many bytes), tuples of up to five components have a loop each and deeper ones one more, and
the whole has one signature, so that no request can meet a combination that was not compiled.

It runs without the GIL, by itself or with the help of a crew (`numba_crew`) that takes the gather part by part
(`numba_part`). Parts write disjoint stretches of the output, and the first bad component is the least of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numba.extending
import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from app.kernels.check_arrays import check_arrays
from app.kernels.numba_cpu import gather_chunk, memory_intrinsics, ndarray_abi, split_over_threads, widen_indices
from app.kernels.numba_cpu.gather_chunk import (
    AXES,
    BATCHES,
    BLOCK,
    COMPONENTS,
    COUNT,
    DATA,
    DEPTH,
    FLAGS,
    INDEX,
    NEAR,
    OUTPUT,
    PART,
    SHARED,
    SIZE,
    START,
    STREAM,
    STRIDE,
    TOTAL,
    TUPLES,
    WHOLE_BATCHES,
    WIDTH,
    WRAP,
    gather_part,
)
from app.kernels.numba_cpu.memory_intrinsics import call, get, put, scratch
from app.kernels.numba_cpu.ndarray_abi import (
    address,
    check_layout,
    header,
    holds_carriers,
    index_type,
    is_array,
    is_writable,
    length,
    times,
)
from app.kernels.numba_cpu.split_over_threads import (
    UNFINISHED,
    Crew,
    LeftGather,
    close,
    ended,
    finish,
    found_bad,
    from_back,
    is_awake,
    join,
    lead,
    leave,
    note_in,
    open_to,
    setting,
    take,
    wait,
)
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH, gather_narrow
from app.operators.gather_plan import GatherPlan

name = "numba"
splits = True

_jitable: Any = numba.extending.register_jitable

_CACHED_BYTES: Final = 1 << 21  # data that caches hold
_LONG: Final = 200_000  # components, slices and 16 bytes, of which so many take longer than a core takes to wake
_PARTS: Final = 4  # for each thread, so that all end together
_PART_BYTES: Final = 1 << 14  # of output, from which on a part need not have the least number of tuples

# Settings of the crew, and what they are unless they are changed.
_LEAST_TUPLES: Final = 0  # that a part has, at least
_STREAM_FROM: Final = 1  # bytes of output, from which on it is stored past the caches, which would not hold it
_PART: Final = 2  # where `gather_part` lies
_NARROW: Final = 3  # and `gather_narrow`
_ARRAY: Final = 4  # the type of NumPy's arrays
_SETTINGS: Final = (BLOCK, 20 << 20)
_PATIENCE: Final = 5  # nanoseconds for which a leader waits that is in a hurry
_PATIENCE_NS: Final = 500_000
_ATTEND, _END, _WAIT = range(3)  # what `_attend` is called for


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled."""
    if _dispatchers.cache_info().currsize:
        raise RuntimeError("the kernel has its cache directory already: configure it first")
    # Numba's cache sees a change of the compiled function's own file only, so the folder is named by all of them.
    digest = sha256()
    for module in (split_over_threads, ndarray_abi, widen_indices, memory_intrinsics, gather_chunk):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    numba.config.CACHE_DIR = str(cache_dir / f"numba-{digest.hexdigest()[:16]}")  # type: ignore[attr-defined]
    _dispatchers()


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
    plan: GatherPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    patient: bool = True,
) -> int:
    """See `app.kernels.Kernel.run`."""
    entry, own = _ready()
    if threads > 1:
        if threads - 1 > own.helpers:
            own.grow(threads - 1)
        for left in tuple(own.left):
            left.settle()
    first: int = entry(
        data,
        indices,
        out,
        _sizes(plan.dims),
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        plan.shared,
        plan.wrap,
        own.box,
        threads - 1,
        patient,
    )
    if first < -1:
        if first == UNFINISHED:
            left = LeftGather(own, (data, indices, out, _sizes(plan.dims)))
            own.left.add(left)
            raise left
        check_arrays(plan, data, indices, out)
        raise TypeError("the plan has a size that no array can have")
    return first


def crew() -> Crew:
    """Who helps with gathers over several threads."""
    return _ready()[1]


@lru_cache(maxsize=4096)
def _sizes(dims: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array(dims, dtype=np.int64)


@cache
def _dispatchers() -> tuple[Any, Any]:
    """The functions to be compiled, tied to the cache directory that is set now."""
    compiler: Any = njit(nogil=True, cache=True, error_model="numpy")
    return compiler(_gather), compiler(_attend)


@cache
def _compiled() -> tuple[Any, Any, Any, Any]:
    """`gather_part`, `gather_narrow`, `_gather` and `_attend`.

    Raises RuntimeError where arrays are not laid out as they take it.
    """
    check_layout()
    whole, flag = types.int64, types.boolean
    part, narrow = (
        cfunc(whole(whole, whole), cache=True, error_model="numpy")(each) for each in (gather_part, gather_narrow)
    )
    gather, attend = _dispatchers()
    gather.compile((header, header, header, header, whole, whole, whole, whole, flag, flag, whole, whole, flag))
    attend.compile((whole, whole))
    for dispatcher in (gather, attend):
        dispatcher.disable_compile()
    return part, narrow, gather, attend


@cache
def _ready() -> tuple[Any, Crew]:
    """`_gather` without the search for a signature that fits, and the crew.

    There is one signature, and it takes any object: so `_gather` itself looks at what it is handed.
    """
    part, narrow, gather, attend = _compiled()
    places = part.address, narrow.address, id(np.ndarray), _PATIENCE_NS
    made = Crew(
        lambda box: attend(box, _ATTEND),
        lambda box: attend(box, _END),
        lambda box: attend(box, _WAIT),
        (*_SETTINGS, *places),
    )
    return gather.overloads[gather.signatures[0]].entry_point, made


@_jitable
def _work(box, leading):  # type: ignore[no-untyped-def]
    """Take parts of the crew's gather until none is left."""
    note = note_in(box)
    part = setting(box, _PART if get(note, INDEX) == 8 else _NARROW)
    count = get(note, COUNT)
    front = 0
    while take(box, count):
        number = front if leading else count - 1 - from_back(box)
        front += 1
        bad = call(part, note, number)
        if bad >= 0:
            found_bad(box, bad)


def _gather(data, indices, out, sizes, batches, tuples, slice_items, item_size, shared, wrap, box, helpers, patient):  # type: ignore[no-untyped-def]
    """The whole, with up to so many helpers from the crew of that box; if not `patient`, perhaps UNFINISHED."""
    array = setting(box, _ARRAY)
    if not (is_array(data, array) and is_array(indices, array) and is_array(out, array)):
        return -2
    kind = index_type(indices)
    if kind == 0 or not (holds_carriers(data, item_size) and holds_carriers(out, item_size) and is_writable(out)):
        return -2
    depth = length(sizes)
    axes = address(sizes)
    negative = batches | tuples | slice_items
    items = times(batches, slice_items)  # of data
    for axis in range(depth):
        negative |= get(axes, axis)
        items = times(items, get(axes, axis))
    slices = times(batches, tuples)
    total = tuples if shared else slices  # tuples in indices
    if negative < 0 or not 1 <= depth <= MAX_DEPTH or length(data) != items:
        return -2
    if length(indices) != times(total, depth) or length(out) != times(slices, slice_items):
        return -2
    width = slice_items * item_size
    data_bytes = items * item_size
    out_bytes = length(out) * item_size
    flags = 0
    if data_bytes <= _CACHED_BYTES:
        flags |= NEAR
    if shared:
        flags |= SHARED
    if wrap:
        flags |= WRAP
    if out_bytes > setting(box, _STREAM_FROM):
        flags |= STREAM
    size = total
    long = length(indices) + slices + out_bytes // 16 > _LONG
    led = helpers > 0 and total > 0 and is_awake(box, long) and lead(box)
    note = scratch()
    if led:
        note = note_in(box)
        if shared and batches > 0 and tuples < BLOCK * helpers:
            flags |= WHOLE_BATCHES
            total = batches
        size = max(total // (_PARTS * (helpers + 1)), 1)
        if flags & WHOLE_BATCHES == 0:
            size = max(size, min(setting(box, _LEAST_TUPLES), max(1, _PART_BYTES // max(width, 1))))
            if not shared and batches > 1 and tuples < BLOCK:
                size = (size + tuples - 1) // tuples * tuples
    put(note, DATA, address(data))
    put(note, OUTPUT, address(out))
    put(note, COMPONENTS, address(indices))
    put(note, AXES, axes)
    put(note, DEPTH, depth)
    put(note, BATCHES, batches)
    put(note, TUPLES, tuples)
    put(note, WIDTH, width)
    put(note, STRIDE, data_bytes // batches if out_bytes > 0 else 0)  # bytes of one batch of data
    put(note, TOTAL, total)
    put(note, SIZE, size)
    put(note, FLAGS, flags)
    put(note, START, 0)
    put(note, INDEX, kind)
    put(note, PART, setting(box, _PART))
    if not led:
        bad = call(setting(box, _PART if kind == 8 else _NARROW), note, 0)
        if helpers > 0:
            ended(box)
        return bad
    put(note, COUNT, (total + size - 1) // size)
    open_to(box, helpers, long)
    _work(box, True)
    return close(box, -1 if patient else setting(box, _PATIENCE))


def _attend(box, what):  # type: ignore[no-untyped-def]
    """What a helper does with its life; what ends all of theirs, or whether a gather that was left is over."""
    if what == _END:
        finish(box)
        return 0
    if what == _WAIT:
        return wait(box, 0)
    serial = join(box, 0)
    while serial >= 0:
        _work(box, False)
        leave(box)
        serial = join(box, serial)
    return 0

"""The gather in one function compiled by Numba: what runs on a CPU.

One function serves every plan, because each compiled one costs start-up time: element types and item sizes do not
matter to it (slices are so many bytes), tuples of up to five components have a loop each and deeper ones one more, and
the whole has one signature, so that no request can meet a combination that was not compiled.

It goes over the tuples in blocks. Component by component it checks a block and adds up its offsets, in vector
registers; while it copies the slices of one block it asks for the memory that the next one needs, so that the waits
overlap. It is serial and runs without the GIL: `app.dispatch` splits large gathers over threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from app.kernels import numba_header, numba_memory
from app.kernels.numba_header import address, check_layout, header, is_aligned, is_plain, is_writable, length
from app.kernels.numba_memory import (
    get,
    get_constant,
    line,
    move,
    move_1,
    move_2,
    move_4,
    move_8,
    move_16,
    move_32,
    move_64,
    prefetch,
    put,
    scratch,
    settle,
    stream_64,
)
from app.spec.plan import GatherPlan

name = "numba"

_BLOCK: Final = numba_memory.SCRATCH_ITEMS // 2
_CACHED_BYTES: Final = 1 << 23  # data that caches hold: no need to ask for it ahead
_CLOSE_BYTES: Final = 1 << 16
_LONG_BYTES: Final = 1 << 12  # rows of which the C library copies each faster
_STREAM_BYTES: Final = 1 << 22  # output, of one part of a split, that caches would not hold: stored past them


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled."""
    if _dispatcher.cache_info().currsize:
        raise RuntimeError("the kernel has its cache directory already: configure it first")
    # Numba's cache sees a change of the compiled function's own file only, so the folder is named by all of them.
    digest = sha256()
    for source in (__file__, numba_header.__file__, numba_memory.__file__):
        digest.update(Path(source).read_bytes())
    numba.config.CACHE_DIR = str(cache_dir / f"numba-{digest.hexdigest()[:16]}")  # type: ignore[attr-defined]
    _dispatcher()


def ready() -> bool:
    """Whether the kernel is compiled."""
    return _compiled.cache_info().currsize > 0


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, all that `run` ever uses."""
    started = perf_counter()
    _compiled()
    if progress is not None:
        progress(f"gather kernel ready after {perf_counter() - started:.2f} s")


def run(plan: GatherPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
    """See `app.kernels.Kernel.run`."""
    item_size = plan.item_size
    if data.itemsize != item_size or indices.itemsize != 8 or out.itemsize != item_size:
        raise TypeError("the plan is for items of another size")
    first: int = _entry()(
        data,
        indices,
        out,
        _sizes(plan.dims),
        plan.batches,
        plan.tuples,
        plan.slice_items,
        item_size,
        plan.shared,
        plan.wrap,
    )
    if first < -1:
        raise TypeError("a kernel takes contiguous arrays of one axis and of the plan's sizes, and a writable output")
    return first


@lru_cache(maxsize=4096)
def _sizes(dims: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array(dims, dtype=np.int64)


@cache
def _dispatcher() -> Any:
    """The function to be compiled, tied to the cache directory that is set now."""
    return njit(nogil=True, cache=True, error_model="numpy")(_gather)


@cache
def _compiled() -> Any:
    """The compiled function. Raises RuntimeError where NumPy's arrays are not what it takes them to be."""
    check_layout()
    dispatcher = _dispatcher()
    whole, flag = types.int64, types.boolean
    dispatcher.compile((header, header, header, header, whole, whole, whole, whole, flag, flag))
    dispatcher.disable_compile()
    return dispatcher


@cache
def _entry() -> Any:
    """The compiled function without the search for a signature that fits: there is one, and it takes any object.

    So `run` itself looks at what it hands over, and the function at the rest.
    """
    dispatcher = _compiled()
    return dispatcher.overloads[dispatcher.signatures[0]].entry_point


def _gather(data, indices, out, sizes, batches, tuples, slice_items, item_size, shared, wrap):  # type: ignore[no-untyped-def]
    depth = length(sizes)
    width = slice_items * item_size
    total = tuples if shared else tuples * batches  # tuples in indices
    if not (is_plain(data, item_size) and is_plain(indices, 8) and is_plain(out, item_size)):
        return -2
    if not (is_aligned(indices) and is_writable(out)):
        return -2
    data_bytes = length(data) * item_size
    out_bytes = length(out) * item_size
    if length(indices) != total * depth or out_bytes != batches * tuples * width:
        return -2
    source = address(data)
    target = address(out)
    components = address(indices)
    copies = out_bytes > 0
    stride = data_bytes // batches if copies else 0  # bytes of one batch of data
    offsets = scratch()  # of `count` slices in hand, then of the next
    ahead = 0
    reach = 0  # how many slices before its copy a slice is asked for; best measured: 64, less for rows
    if data_bytes > _CACHED_BYTES:
        reach = 64 if width < 64 else max(1, min(16, 4096 // width))
    stream = out_bytes > _STREAM_BYTES
    joint = line()

    axes = address(sizes)
    # Sizes of the first axes, what a negative component needs there, the last good one, and bytes of a step along it.
    size_0 = get(axes, 0) if depth > 0 else 1
    size_1 = get(axes, 1) if depth > 1 else 1
    size_2 = get(axes, 2) if depth > 2 else 1
    size_3 = get(axes, 3) if depth > 3 else 1
    size_4 = get(axes, 4) if depth > 4 else 1
    fix_0, fix_1, fix_2, fix_3, fix_4 = (size_0, size_1, size_2, size_3, size_4) if wrap else (0, 0, 0, 0, 0)
    last_0, last_1, last_2, last_3, last_4 = size_0 - 1, size_1 - 1, size_2 - 1, size_3 - 1, size_4 - 1
    step_3 = width * size_4
    step_2 = step_3 * size_3
    step_1 = step_2 * size_2
    step_0 = step_1 * size_1

    done = 0  # tuples read from indices
    base = 0  # where the batch begins that the next tuple belongs to
    left = tuples  # tuples that remain in that batch
    reciprocal = (1 << 32) // max(tuples, 1) + 1
    repeats = 0  # batches for which the block in hand is still to be repeated
    block = 0  # offsets that are repeated
    group = 1  # how many batches one repetition covers
    step = 0
    count = 0
    place = target
    while True:
        # Write the offsets of the next block behind those of the block in hand.
        more = 0
        next_place = place + count * width
        if repeats > 0:
            taken = min(repeats, group)
            more = taken * block
            for t in range(more):
                put(offsets, count + t, get(offsets, t) + step)
            repeats -= taken
            next_place = place + group * tuples * width
        elif done < total:
            more = min(_BLOCK, total - done)
            if tuples >= _BLOCK:
                more = min(more, left)  # of one batch
            origin = source + base
            first = done * depth
            fresh = offsets + 8 * count
            worst = 0  # negative once any component is: a bad one makes itself or its distance to the last negative
            if depth == 1:
                for t in range(more):
                    a = get_constant(components, first + t)
                    a += (a >> 63) & fix_0
                    worst |= a | (last_0 - a)
                    put(fresh, t, a * width + origin)
            elif depth == 2:
                for t in range(more):
                    a = get_constant(components, first + 2 * t)
                    b = get_constant(components, first + 2 * t + 1)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    worst |= a | (last_0 - a) | b | (last_1 - b)
                    put(fresh, t, a * step_0 + b * width + origin)
            elif depth == 3:
                for t in range(more):
                    a = get_constant(components, first + 3 * t)
                    b = get_constant(components, first + 3 * t + 1)
                    c = get_constant(components, first + 3 * t + 2)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    put(fresh, t, a * step_0 + b * step_1 + c * width + origin)
            elif depth == 4:
                for t in range(more):
                    a = get_constant(components, first + 4 * t)
                    b = get_constant(components, first + 4 * t + 1)
                    c = get_constant(components, first + 4 * t + 2)
                    d = get_constant(components, first + 4 * t + 3)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    d += (d >> 63) & fix_3
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    worst |= d | (last_3 - d)
                    put(fresh, t, a * step_0 + b * step_1 + c * step_2 + d * width + origin)
            elif depth == 5:
                for t in range(more):
                    a = get_constant(components, first + 5 * t)
                    b = get_constant(components, first + 5 * t + 1)
                    c = get_constant(components, first + 5 * t + 2)
                    d = get_constant(components, first + 5 * t + 3)
                    e = get_constant(components, first + 5 * t + 4)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    d += (d >> 63) & fix_3
                    e += (e >> 63) & fix_4
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    worst |= d | (last_3 - d) | e | (last_4 - e)
                    put(fresh, t, a * step_0 + b * step_1 + c * step_2 + d * step_3 + e * width + origin)
            else:
                for t in range(more):
                    put(fresh, t, origin)
                at = stride  # bytes of a step along axis j
                for j in range(depth):
                    size = get(axes, j)
                    fix = size if wrap else 0
                    at = at // size if size else 0
                    for t in range(more):
                        a = get_constant(components, first + t * depth + j)
                        a += (a >> 63) & fix
                        worst |= a | (size - 1 - a)
                        put(fresh, t, get(fresh, t) + a * at)
            if worst < 0:
                for at in range(first, first + more * depth):
                    a = get(components, at)
                    size = get(axes, at % depth)
                    if a >= size or a < (-size if wrap else 0):
                        return at
            done += more
            if shared:
                next_place = target + (done - more) * width
                if copies:
                    block = more
                    group = min(batches, max(1, _BLOCK // tuples))
                    step = group * stride
                    for t in range(more, more * group):
                        put(offsets, count + t, get(offsets, count + t - block) + stride)
                    more *= group
                    repeats = batches - group
            elif more <= left:
                left -= more
                if left == 0:
                    left = tuples
                    base += stride
            else:
                # Batches that begin within the block, without a division a tuple: exact for such small numbers.
                before = tuples - left
                for t in range(more):
                    put(fresh, t, get(fresh, t) + (((t + before) * reciprocal) >> 32) * stride)
                passed = (before + more) // tuples
                left = tuples - (before + more - passed * tuples)
                base += passed * stride
        for t in range(count + more, count + reach):
            put(offsets, t, get(offsets, t - 1) if t > 0 else source)  # nothing to ask for: what is copied last
        if copies:
            if count == 0:
                ahead = reach
                for t in range(ahead):
                    prefetch(get(offsets, t))
            elif width == 1:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_1(place + t, get(offsets, t))
                else:
                    for t in range(count):
                        move_1(place + t, get(offsets, t))
            elif width == 2:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_2(place + 2 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_2(place + 2 * t, get(offsets, t))
            elif width == 4:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_4(place + 4 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_4(place + 4 * t, get(offsets, t))
            elif width == 8:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_8(place + 8 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_8(place + 8 * t, get(offsets, t))
            elif width == 16:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_16(place + 16 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_16(place + 16 * t, get(offsets, t))
            elif width < 64:
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    prefetch(get(offsets, t + ahead))
                    prefetch(get(offsets, t + ahead) + width - 1)
                    if width > 32:
                        move_32(to, at)
                        move_32(to + width - 32, at + width - 32)
                    elif width > 16:
                        move_16(to, at)
                        move_16(to + width - 16, at + width - 16)
                    elif width > 8:
                        move_8(to, at)
                        move_8(to + width - 8, at + width - 8)
                    elif width > 4:
                        move_4(to, at)
                        move_4(to + width - 4, at + width - 4)
                    else:
                        move_2(to, at)
                        move_1(to + 2, at + 2)
            elif stream:
                # Whole lines past the caches; a line that two rows share is put together in `joint` first.
                filled = place & 63
                if filled > 0:
                    move(place, get(offsets, 0), 64 - filled)
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    soon = get(offsets, t + ahead)
                    prefetch(soon)
                    c = 0
                    if filled > 0:
                        c = 64 - filled
                        if t > 0:
                            move_64(joint + filled, at)
                            stream_64(to - filled, joint)
                    while c <= width - 64:
                        prefetch(soon + c + 63)
                        stream_64(to + c, at + c)
                        c += 64
                    filled = width - c
                    move_64(joint + filled - 64, at + width - 64)
                move(place + count * width - filled, joint, filled)
            elif width >= _LONG_BYTES:
                # The hardware asks for the rest of a row once its first lines are read.
                for t in range(count):
                    soon = get(offsets, t + ahead)
                    for c in range(0, 512, 64):
                        prefetch(soon + c)
                    move(place + t * width, get(offsets, t), width)
            else:
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    soon = get(offsets, t + ahead)
                    for c in range(0, width - 64, 64):
                        prefetch(soon + c)
                        move_64(to + c, at + c)
                    prefetch(soon + width - 64)
                    move_64(to + width - 64, at + width - 64)
        if more == 0:
            break
        for t in range(more):
            put(offsets, t, get(offsets, count + t))
        count = more
        place = next_place
        # Items that lie close together are found by the hardware, which asking by hand only disturbs.
        ahead = reach
        if width < 64 and abs(get(offsets, count - 1) - get(offsets, 0)) < _CLOSE_BYTES:
            ahead = 0
    if stream:
        settle()
    return -1

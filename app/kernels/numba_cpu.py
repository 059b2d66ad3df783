"""The gather in one function compiled by Numba: what runs on a CPU.

One function serves every plan, because each compiled one costs start-up time: element types and item sizes do not
matter to it (slices are so many bytes), tuple depth is a loop, and the whole has one signature, so that no request can
meet a combination that was not compiled.

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

from app.kernels import numba_memory
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

_BYTES: Final = np.dtype(np.uint8)
_BLOCK: Final = numba_memory.SCRATCH_ITEMS // 2
_CACHED_BYTES: Final = 1 << 18  # data that caches hold: no need to ask for it ahead
_CLOSE_BYTES: Final = 1 << 16
_STREAM_BYTES: Final = 1 << 22  # output, of one part of a split, that caches would not hold: stored past them


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled."""
    if _dispatcher.cache_info().currsize:
        raise RuntimeError("the kernel has its cache directory already: configure it first")
    # Numba's cache sees a change of the compiled function's own file only, so the folder is named by both.
    digest = sha256()
    for source in (__file__, numba_memory.__file__):
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
    first: int = _compiled()(
        data.view(_BYTES),
        indices,
        out.view(_BYTES),
        _sizes(plan.dims),
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        plan.shared,
        plan.wrap,
    )
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
    """The compiled function, closed to further signatures; writable arrays pass where read-only ones are declared."""
    dispatcher = _dispatcher()
    bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
    ints_in = types.Array(types.int64, 1, "C", readonly=True)
    bytes_out = types.Array(types.uint8, 1, "C")
    whole, flag = types.int64, types.boolean
    dispatcher.compile((bytes_in, ints_in, bytes_out, ints_in, whole, whole, whole, whole, flag, flag))
    dispatcher.disable_compile()
    return dispatcher


def _gather(data, indices, out, sizes, batches, tuples, slice_items, item_size, shared, wrap):  # type: ignore[no-untyped-def]
    depth = sizes.size
    source = np.int64(data.ctypes.data)
    target = np.int64(out.ctypes.data)
    components = np.int64(indices.ctypes.data)
    width = slice_items * item_size
    copies = out.size > 0
    stride = data.size // batches if copies else 0  # bytes of one batch of data
    total = tuples if shared else tuples * batches  # tuples in indices
    offsets = scratch()  # of `count` slices in hand, then of the next
    ahead = 0
    reach = 0  # how many slices before its copy a slice is asked for; best measured: 64, less for rows
    if data.size > _CACHED_BYTES:
        reach = 64 if width < 64 else max(1, min(16, 4096 // width))
    stream = out.size > _STREAM_BYTES
    joint = line()

    # Sizes of the first axes, what a negative component needs there, the last good one, and bytes of a step along it.
    size_0 = sizes[0] if depth > 0 else 1
    size_1 = sizes[1] if depth > 1 else 1
    size_2 = sizes[2] if depth > 2 else 1
    size_3 = sizes[3] if depth > 3 else 1
    size_4 = sizes[4] if depth > 4 else 1
    fix_0, fix_1, fix_2, fix_3, fix_4 = (size_0, size_1, size_2, size_3, size_4) if wrap else (0, 0, 0, 0, 0)
    last_0, last_1, last_2, last_3, last_4 = size_0 - 1, size_1 - 1, size_2 - 1, size_3 - 1, size_4 - 1
    step_3 = width * size_4
    step_2 = step_3 * size_3
    step_1 = step_2 * size_2
    step_0 = step_1 * size_1

    done = 0  # tuples read from indices
    base = 0  # where the batch begins that the next tuple belongs to
    left = tuples  # tuples that remain in that batch
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
            first = done * depth
            fresh = offsets + 8 * count
            worst = 0  # negative once any component is: a bad one makes itself or its distance to the last negative
            if depth == 1:
                for t in range(more):
                    a = get_constant(components, first + t)
                    a += (a >> 63) & fix_0
                    worst |= a | (last_0 - a)
                    put(fresh, t, a * width + source)
            elif depth == 2:
                for t in range(more):
                    a = get_constant(components, first + 2 * t)
                    b = get_constant(components, first + 2 * t + 1)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    worst |= a | (last_0 - a) | b | (last_1 - b)
                    put(fresh, t, a * step_0 + b * width + source)
            elif depth == 3:
                for t in range(more):
                    a = get_constant(components, first + 3 * t)
                    b = get_constant(components, first + 3 * t + 1)
                    c = get_constant(components, first + 3 * t + 2)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    put(fresh, t, a * step_0 + b * step_1 + c * width + source)
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
                    put(fresh, t, a * step_0 + b * step_1 + c * step_2 + d * width + source)
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
                    put(fresh, t, a * step_0 + b * step_1 + c * step_2 + d * step_3 + e * width + source)
            else:
                for t in range(more):
                    put(fresh, t, source)
                at = stride  # bytes of a step along axis j
                for j in range(depth):
                    size = sizes[j]
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
                    size = sizes[at % depth]
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
            elif batches > 1:
                t = 0
                while t < more:
                    stretch = min(left, more - t)
                    if base > 0:
                        for u in range(t, t + stretch):
                            put(fresh, u, get(fresh, u) + base)
                    t += stretch
                    left -= stretch
                    if left == 0:
                        left = tuples
                        base += stride
        for t in range(count + more, count + reach):
            put(offsets, t, source)  # nothing to ask for: any address of ours
        if copies:
            if count == 0:
                ahead = reach
                for t in range(ahead):
                    prefetch(get(offsets, t))
            elif width == 1:
                for t in range(count):
                    prefetch(get(offsets, t + ahead))
                    move_1(place + t, get(offsets, t))
            elif width == 2:
                for t in range(count):
                    prefetch(get(offsets, t + ahead))
                    move_2(place + 2 * t, get(offsets, t))
            elif width == 4:
                for t in range(count):
                    prefetch(get(offsets, t + ahead))
                    move_4(place + 4 * t, get(offsets, t))
            elif width == 8:
                for t in range(count):
                    prefetch(get(offsets, t + ahead))
                    move_8(place + 8 * t, get(offsets, t))
            elif width == 16:
                for t in range(count):
                    prefetch(get(offsets, t + ahead))
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
            else:
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    soon = get(offsets, t + ahead)
                    for c in range(0, width - 63, 64):
                        prefetch(soon + c)
                        move_64(to + c, at + c)
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

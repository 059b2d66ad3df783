"""Convert a plan into a launch of gather.cu: its entry point, number of threads and arguments.

This module does not need CUDA. It is separate from `cupy_gpu.device` so that tests can run the same source, with the
same launch parameters, on a CPU.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from app.operators.gather_plan import GatherPlan

SOURCE: Final = Path(__file__).with_name("gather.cu")
OPTIONS: Final = ("--std=c++17",)
# The next four constants must match gather.cu.
BLOCK: Final = 256
"""Threads per block."""
AT_ONCE: Final = 4
"""Number of units or wide slices in flight per thread, so that their latencies overlap."""
MAX_DEPTH: Final = 64
"""Maximum number of components in a tuple: the axis limit of NumPy arrays (NPY_MAXDIMS in NumPy 2)."""
UNITS: Final = (16, 8, 4, 2, 1)
"""Sizes of copies in bytes, up to the size of CUDA's int4."""
ENTRIES: Final = tuple(
    f"gather_{bits}_{unit}_{kind}"
    for bits in (32, 64)
    for unit in UNITS
    for kind in ("1", "2", "3", "any", *(("wide",) if unit < 16 else ()))
)
"""The entry points of gather.cu: gather_{index bits}_{unit bytes}_{tuple length, any, or wide for wide slices}."""
NOTHING: Final = (1 << 64) - 1
"""The value of `*Plan.first` before the launch, and after it if no component is invalid."""
_WARP_BITS: Final = 5
"""A warp has 2**5 threads on all CUDA devices."""
_ADDRESSES: Final = Struct("<4Q")
_REST: Final = Struct(f"<7Q8I{MAX_DEPTH}q")
PLAN_BYTES: Final = _ADDRESSES.size + _REST.size
_BUSY: Final = 4
"""Number of blocks that keep a multiprocessor busy."""
_NARROW: Final = {8: 304, 4: 16, 2: 16, 1: 16}
"""Maximum number of bytes in a slice that is not wide, by the slice's unit. The wide kernel is faster above about this
size.

The value for 8 was measured on an H100; the others were measured on an H200. With units of 16 bytes, the wide kernel is
never faster.
"""
_PACKS: Final = {8: 8, 4: 16, 2: 16, 1: 16}
"""Bytes per store of the wide kernel, by a slice's unit."""
_THREAD_BYTES: Final = 128
"""Bytes per thread of a stretch of slices. More and smaller blocks finish closer together."""
_MOST_BLOCKS: Final = (1 << 31) - 1, 65535
"""CUDA's limits for the dimensions of a grid (Programming Guide, "Compute Capabilities")."""


class Launch(NamedTuple):
    """An entry point of gather.cu, its grid of blocks of BLOCK threads, and the bytes of its argument, a `Plan`."""

    entry: str
    grid: tuple[int, int]
    argument: bytes


def launch(
    plan: GatherPlan, index_size: int, addresses: tuple[int, int, int, int], multiprocessors: int
) -> Launch | None:
    """Return the launch for `plan`, or None if there is nothing to check.

    `addresses` are the device addresses of data, indices (aligned signed integers of `index_size` bytes, 4 or 8),
    output, and the word for the first invalid position.
    """
    data, _, out, _ = addresses
    # The lowest bit set in any of the three is their common alignment.
    width = plan.slice_items * plan.item_size
    shaped = _shape(plan, index_size, alignment(data | out | width), multiprocessors)
    if shaped is None:
        return None
    entry, grid, rest = shaped
    return Launch(entry, grid, _ADDRESSES.pack(*addresses) + rest)


def alignment(bits: int) -> int:
    """Return the largest access size, in bytes, that divides all addresses and sizes combined in `bits`."""
    return min(bits & -bits, UNITS[0]) if bits else UNITS[0]


@lru_cache(maxsize=4096)
def _shape(
    plan: GatherPlan, index_size: int, unit: int, multiprocessors: int
) -> tuple[str, tuple[int, int], bytes] | None:
    if plan.index_items == 0:
        return None
    copies = plan.output_items > 0
    width = plan.slice_items * plan.item_size if copies else 0
    units = width // unit
    slices = plan.batches * plan.tuples if copies else plan.index_items // plan.depth
    lane_bits = 0
    if width > _NARROW.get(unit, width):
        kind = "wide"
        pack = _PACKS[unit]
        packs = -(-min(AT_ONCE, slices) * width // pack)  # packs per stretch
        lane_bits = min(max(packs // 2, 1).bit_length() - 1, _WARP_BITS)
        turns = -(-packs >> lane_bits)
        blocks = min(-(-slices // (AT_ONCE * BLOCK >> lane_bits)), _MOST_BLOCKS[1])
        pieces = max(-(-turns * pack // _THREAD_BYTES), -(-2 * _BUSY * multiprocessors // blocks))
        grid = min(pieces, turns, _MOST_BLOCKS[1]), blocks
    else:
        kind = str(plan.depth) if plan.depth <= 3 else "any"
        grid = min(-(-slices * max(units, 1) // (AT_ONCE * BLOCK)), _MOST_BLOCKS[0]), 1
    magic, shift = division(plan.tuples)
    set_magic, set_shift = division(plan.batches_per_set)
    unit_magic, unit_shift = division(units)
    rest = _REST.pack(
        slices,
        plan.tuples,
        magic,
        set_magic,
        unit_magic,
        units,
        plan.block_items * plan.item_size // unit if copies else 0,
        shift,
        set_shift,
        unit_shift,
        lane_bits,
        plan.depth,
        copies and plan.batches > 1,
        plan.broadcast_indices or plan.batches_per_set > 1,
        plan.wrap,
        *plan.dims,
        *(0,) * (MAX_DEPTH - plan.depth),
    )
    return f"gather_{8 * index_size}_{unit}_{kind}", grid, rest


def division(divisor: int) -> tuple[int, int]:
    """Return a factor and a shift: number // divisor == (number * factor >> 64) >> shift for all numbers below 2**63.

    Returns (0, 0) for the divisors 0 and 1, by which the kernel does not divide. With 2**(n-1) < divisor <= 2**n, the
    factor is 2**(63+n) / divisor, rounded up. The rounding adds less than 1/divisor to the quotient of such a number.
    """
    if divisor < 2:
        return 0, 0
    bits = (divisor - 1).bit_length()
    return -(-(1 << (63 + bits)) // divisor), bits - 1

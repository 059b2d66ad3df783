"""How a plan becomes a launch of gather.cu: which entry point, how many threads, which arguments.

Nothing here needs CUDA: it is apart from `cupy_gpu` so that tests can run the very same source, launched in the very
same way, on a CPU.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from app.operators.gather_plan import GatherPlan

SOURCE: Final = Path(__file__).with_name("gather.cu")
OPTIONS: Final = ("--std=c++17",)
# The next four are those of gather.cu.
BLOCK: Final = 256
"""Threads of a block."""
AT_ONCE: Final = 4
"""Units or wide slices that a thread has under way, so that their waits overlap."""
MAX_DEPTH: Final = 64
"""Components of a tuple: the most axes of NumPy's arrays (NPY_MAXDIMS of NumPy 2)."""
UNITS: Final = (16, 8, 4, 2, 1)
"""Bytes that are copied at once, up to those of CUDA's int4."""
ENTRIES: Final = tuple(
    f"gather_{bits}_{unit}_{kind}"
    for bits in (32, 64)
    for unit in UNITS
    for kind in ("1", "2", "3", "any", *(("wide",) if unit < 16 else ()))
)
"""The entry points of gather.cu: by bits of an index, bytes of a unit, length of a tuple; any for wide slices."""
NOTHING: Final = (1 << 64) - 1
"""What `Plan.first` points to before the launch, and after it where no component is bad."""
_WARP_BITS: Final = 5
"""2**5 threads of a warp, on all of CUDA's devices."""
_ADDRESSES: Final = Struct("<4Q")
_REST: Final = Struct(f"<7Q8I{MAX_DEPTH}q")
PLAN_BYTES: Final = _ADDRESSES.size + _REST.size
_BUSY: Final = 4
"""Blocks that each multiprocessor needs to be busy."""
_NARROW: Final = {8: 304, 4: 16, 2: 16, 1: 16}
"""Most bytes of a slice that is not wide, by its unit: about where the wide kernel begins to be faster. That of 8 was
measured on an H100, the others on an H200. With units of 16 bytes it never is."""
_PACKS: Final = {8: 8, 4: 16, 2: 16, 1: 16}
"""Bytes that the wide kernel writes at once, by a slice's unit."""
_THREAD_BYTES: Final = 128
"""Of a stretch of slices, for each thread: more and smaller blocks finish at more nearly the same time."""
_MOST_BLOCKS: Final = (1 << 31) - 1, 65535
"""The most that CUDA takes for a grid's dimensions (Programming Guide, "Compute Capabilities")."""


class Launch(NamedTuple):
    """An entry point of gather.cu, the grid of blocks of BLOCK threads, and the bytes of its one argument, `Plan`."""

    entry: str
    grid: tuple[int, int]
    argument: bytes


def launch(
    plan: GatherPlan, index_size: int, addresses: tuple[int, int, int, int], multiprocessors: int
) -> Launch | None:
    """The launch for `plan`, or None if there is nothing to check.

    `addresses` are those of data, indices (signed integers of `index_size` bytes, 4 or 8, aligned to that), output and
    the word that the first bad position goes to, on the device.
    """
    data, _, out, _ = addresses
    # The lowest bit set in any of them says how far they are aligned, all three together.
    width = plan.slice_items * plan.item_size
    shaped = _shape(plan, index_size, alignment(data | out | width), multiprocessors)
    if shaped is None:
        return None
    entry, grid, rest = shaped
    return Launch(entry, grid, _ADDRESSES.pack(*addresses) + rest)


def alignment(bits: int) -> int:
    """The largest unit, in bytes, that divides `bits`."""
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
        packs = -(-min(AT_ONCE, slices) * width // pack)  # of a stretch
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
    """A factor and a shift: number // divisor is (number * factor >> 64) >> shift for every number below 2**63.

    (0, 0) for 0 and 1, by which the kernel does not divide. With 2**(n-1) < divisor <= 2**n the factor is 2**(63+n)
    over the divisor, rounded up; what it is too large by adds less than 1/divisor to the quotient of such a number.
    """
    if divisor < 2:
        return 0, 0
    bits = (divisor - 1).bit_length()
    return -(-(1 << (63 + bits)) // divisor), bits - 1

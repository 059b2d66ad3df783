"""Cuts a gather into parts that are gathers themselves, so that several threads can share it.

Kernels know nothing of this: a part is a plan of its own over views of the same arrays. Parts write disjoint stretches
of the output, and the first bad component of the whole is the least of the parts' own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from app.dispatch.pool import Pool, Ticket
from app.kernels import Kernel
from app.spec.plan import GatherPlan

_PIECES: Final = 4  # parts for each thread where batches do not come out even, so that threads end together


class Part(NamedTuple):
    """A gather over a part of another one; `base` is where its components begin in the indices of the whole."""

    plan: GatherPlan
    data: NDArray[Any]
    indices: NDArray[Any]
    out: NDArray[Any]
    base: int


def split_plan(
    plan: GatherPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any], parts: int
) -> list[Part]:
    """Cut into about `parts` parts: by batches where there are enough of them, else by tuples within each batch."""
    batches, tuples, depth = plan.batches, plan.tuples, plan.depth
    if parts < 2 or batches == 0 or tuples == 0:
        return [Part(plan, data, indices, out, 0)]
    if batches % parts == 0 or batches >= _PIECES * parts:
        batch_cuts = _cuts(batches, parts)
        tuple_cuts = [0, tuples]
    else:
        batch_cuts = list(range(batches + 1))
        tuple_cuts = _cuts(tuples, parts if batches == 1 else -(-_PIECES * parts // batches))
    block = plan.block_items
    width = plan.slice_items
    found = []
    for low, high in pairwise(batch_cuts):
        for first, last in pairwise(tuple_cuts):
            # Either whole batches, or one batch and some of its tuples: contiguous in the output both ways.
            row = low * tuples + first
            rows = (high - low) * (last - first)
            start = first if plan.shared else row
            count = last - first if plan.shared else rows
            found.append(
                Part(
                    replace(plan, batches=high - low, tuples=last - first),
                    data[low * block : high * block],
                    indices[start * depth : (start + count) * depth],
                    out[row * width : (row + rows) * width],
                    start * depth,
                )
            )
    return found


async def run_split(
    pool: Pool,
    kernel: Kernel,
    plan: GatherPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    count: int,
    started: Callable[[], None],
    ticket: Ticket | None = None,
) -> int:
    """What `kernel.run` does, in about `count` parts; `started` is called in a thread when the first part begins."""
    parts = split_plan(plan, data, indices, out, count)

    def first() -> int:
        started()
        return work_on(parts[0])

    def work_on(part: Part) -> int:
        return kernel.run(part.plan, part.data, part.indices, part.out)

    def later(part: Part) -> Callable[[], int]:
        return lambda: work_on(part)

    found = await pool.split([first, *map(later, parts[1:])], ticket)
    return first_bad(parts, found)


def first_bad(parts: list[Part], found: list[int]) -> int:
    """The first bad component of the whole, from those that the parts found, or -1."""
    return min((part.base + bad for part, bad in zip(parts, found, strict=True) if bad >= 0), default=-1)


def _cuts(size: int, parts: int) -> list[int]:
    """Bounds of at most `parts` stretches of 0..size as equal as can be."""
    parts = min(parts, size)
    return [size * part // parts for part in range(parts + 1)]

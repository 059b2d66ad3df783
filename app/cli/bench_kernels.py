"""The kernel beside NumPy, in this process, for `gathernd bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import inf, prod
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.cli.bench_server import BenchFailed
from app.operators.gather_plan import GatherPlan
from app.services.service import Service

_BATCH_S: Final = 0.002
"""Seconds of the calls that are timed together."""


@dataclass(frozen=True)
class Shapes:
    """A piece of work by the shapes of data, which is float32, and indices."""

    name: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    batch_dims: int = 0

    @property
    def plan(self) -> GatherPlan:
        """The work as the kernel gets it."""
        b, k = self.batch_dims, self.indices[-1]
        data = self.data
        return GatherPlan(
            prod(data[:b]), prod(self.indices[b:-1]), data[b : b + k], prod(data[b + k :]), 4, False, True
        )


SHAPES: Final = (
    Shapes("2 tuples of 2 from 2×2", (2, 2), (2, 2)),
    Shapes("256 rows of 64 from 200,000", (200_000, 64), (256, 1)),
    Shapes("100,000 items of 1,000,000", (1_000_000,), (100_000, 1)),
    Shapes("100,000 rows of 4 from 1,000,000", (1_000_000, 4), (100_000, 1)),
    Shapes("1,000 rows of 4,096 from 5,000", (5_000, 4096), (1_000, 1)),
    Shapes("100,000 tuples of 3 from 128×256×128", (128, 256, 128), (100_000, 3)),
    Shapes("64 batches of 500 rows of 128 from 1,000", (64, 1000, 128), (64, 500, 1), 1),
)


def compare(service: Service, shapes: Shapes, seconds: float) -> dict[str, Any]:
    """The best microseconds of the kernel, split as the service would split it, and of NumPy, measured in turns.

    NumPy's are those of its quickest way: fancy indexing, or np.take where rows are gathered. Both read the same places
    again and again. Raises BenchFailed where the kernel gathers otherwise than NumPy.
    """
    source = np.random.default_rng(3)
    data = source.random(shapes.data, np.float32)
    b = shapes.batch_dims
    sizes = shapes.data[b : b + shapes.indices[-1]]
    indices = np.stack([source.integers(0, size, shapes.indices[:-1]) for size in sizes], axis=-1)
    plan = shapes.plan
    threads = service.chooser.decide(plan).cpu.parts
    flat, flat_indices = data.reshape(-1).view(np.uint32), indices.reshape(-1)
    out = np.zeros(plan.output_items, np.uint32)
    ways = _numpy_ways(shapes, data, indices)
    bad = service.kernel.run(plan, flat, flat_indices, out, threads)
    if bad != -1 or not np.array_equal(out.view(np.float32), ways[0]().reshape(-1)):
        raise BenchFailed(f"{shapes.name}: the kernel gathers otherwise than NumPy")
    ours, *theirs = _best_us([lambda: service.kernel.run(plan, flat, flat_indices, out, threads), *ways], seconds)
    return {
        "work": shapes.name,
        "threads": threads,
        "gathernd_us": ours,
        "numpy_us": min(theirs),
        "ratio": min(theirs) / ours,
    }


def _numpy_ways(shapes: Shapes, data: NDArray[Any], indices: NDArray[np.int64]) -> list[Callable[[], NDArray[Any]]]:
    columns = tuple(np.moveaxis(indices, -1, 0))
    rank = indices.ndim - 1
    batches = tuple(
        np.arange(size).reshape([-1 if axis == own else 1 for axis in range(rank)])
        for own, size in enumerate(shapes.data[: shapes.batch_dims])
    )
    ways: list[Callable[[], NDArray[Any]]] = [lambda: data[(*batches, *columns)]]
    if shapes.batch_dims == 0 and len(columns) == 1:
        rows = np.ascontiguousarray(columns[0])
        out = np.zeros((*rows.shape, *data.shape[1:]), data.dtype)
        ways += [lambda: np.take(data, rows, axis=0), lambda: np.take(data, rows, axis=0, out=out)]
    return ways


def _best_us(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The best microseconds of each, which take turns for `seconds` all together."""
    counts = [max(1, round(_BATCH_S / max(min(_time(call, 1) for _ in range(3)), 1e-7))) for call in calls]
    best = [inf] * len(calls)
    until = perf_counter() + seconds
    while inf in best or perf_counter() < until:
        for place, (call, count) in enumerate(zip(calls, counts, strict=True)):
            best[place] = min(best[place], _time(call, count) * 1e6)
    return best


def _time(call: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` calls."""
    begun = perf_counter()
    for _ in repeat(None, count):
        call()
    return (perf_counter() - begun) / count

"""The work of `kernels backward`, by the shapes of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Line:
    """`tuples` rows of `width` float32, added into a table of `rows`; those named are spread as `spread` says."""

    name: str
    tuples: int
    rows: int
    width: int
    sparse: bool = False
    spread: str = "uniform"


LINES = (
    Line("256 rows of 64 into 200k", 256, 200_000, 64),
    Line("256 rows of 64 into 200k, sparse", 256, 200_000, 64, sparse=True),
    Line("10k rows of 64 into 200k", 10_000, 200_000, 64),
    Line("10k rows of 64 into 200k, sparse", 10_000, 200_000, 64, sparse=True),
    Line("100k rows of 64 into 200k", 100_000, 200_000, 64),
    Line("100k rows of 64 into 200k, sparse", 100_000, 200_000, 64, sparse=True),
    Line("100k rows of 64 into 200k, few often", 100_000, 200_000, 64, spread="zipf"),
    Line("100k rows of 64 into 200k, few often, sparse", 100_000, 200_000, 64, sparse=True, spread="zipf"),
    Line("300k rows of 64 into 100", 300_000, 100, 64),
    Line("300k rows of 64 into 1", 300_000, 1, 64),
    Line("300k rows of 64 into 100, sparse", 300_000, 100, 64, sparse=True),
    Line("20k rows of 1024 into 5k", 20_000, 5_000, 1024),
    Line("1M items into 1M", 1_000_000, 1_000_000, 1),
    Line("1M items into 1000", 1_000_000, 1_000, 1),
    Line("1M items into 1", 1_000_000, 1, 1),
    Line("300k rows of 4 into 100k", 300_000, 100_000, 4),
    Line("1k rows of 4 into 1M", 1_000, 1_000_000, 4),
)


def make_inputs(line: Line) -> tuple[Indices, NDArray[np.float32]]:
    source = np.random.default_rng(0)
    if line.spread == "zipf":
        places = source.zipf(1.2, line.tuples) % line.rows
    else:
        places = source.integers(0, line.rows, line.tuples)
    return places.astype(np.int64), source.standard_normal((line.tuples, line.width)).astype(np.float32)

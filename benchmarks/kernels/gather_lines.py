"""The work of `kernels gather`, by the shapes of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.operators.gather_plan import GatherPlan


@dataclass(frozen=True)
class Line:
    """A piece of work; `clustered` work reads neighbouring slices one after another."""

    name: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    batch_dims: int = 0
    dtype: str = "float32"
    clustered: bool = False

    @property
    def plan(self) -> GatherPlan:
        b, k = self.batch_dims, self.indices[-1]
        size = np.dtype(self.dtype).itemsize
        return GatherPlan(
            prod(self.data[:b]), prod(self.indices[b:-1]), self.data[b : b + k], prod(self.data[b + k :]), size,
            False, True,
        )  # fmt: skip

    @property
    def output(self) -> tuple[int, ...]:
        """The output's shape."""
        return self.indices[:-1] + self.data[self.batch_dims + self.indices[-1] :]

    @property
    def plain(self) -> bool:
        """Whether it is a gather of rows: one axis, no batches."""
        return self.batch_dims == 0 and self.indices[-1] == 1

    @property
    def along_last(self) -> bool:
        """Whether it is a gather of items along the last axis, with all others as batches."""
        whole = self.batch_dims == len(self.data) - 1 == len(self.indices) - 2
        return whole and self.batch_dims > 0 and self.indices[-1] == 1


def _rows(width: int, rows: int, table: int, dtype: str = "float32", clustered: bool = False) -> Line:
    """`rows` rows of `width` bytes out of a table of about `table` bytes."""
    items = width // np.dtype(dtype).itemsize
    name = f"{rows:,} rows of {width:,} B{', clustered' if clustered else ''}"
    return Line(name, (table // width, items), (rows, 1), 0, dtype, clustered)


LINES = (
    Line("2 tuples of 2x2", (2, 2), (2, 2)),
    Line("1M tuples of 3, 256x256x64", (256, 256, 64), (1_000_000, 3)),
    Line("4M tuples of 2, 8192x8192 float16", (8192, 8192), (4_000_000, 2), 0, "float16"),
    Line("1M tuples of 2, 4096x4096 int8", (4096, 4096), (1_000_000, 2), 0, "int8"),
    Line("100k rows of 64", (1_000_000, 64), (100_000, 1)),
    Line("10k rows of 4096", (10_000, 4096), (10_000, 1)),
    Line("64 batches of 500 rows of 128", (64, 1000, 128), (64, 500, 1), 1),
    Line("3125 rows of 15, depth 3", (1000, 256, 10, 15), (25, 125, 3)),
    Line("4096 batches of one row of 320", (1, 64, 64, 320), (1, 64, 64, 1, 1), 3),
    Line("256 rows of 64 from 200k", (200_000, 64), (256, 1)),
    # sizes
    Line("1 item", (1_000_000,), (1, 1)),
    Line("10 items", (1_000_000,), (10, 1)),
    Line("100 items", (1_000_000,), (100, 1)),
    Line("1000 items", (1_000_000,), (1_000, 1)),
    Line("10^4 items", (1_000_000,), (10_000, 1)),
    Line("10^5 items", (1_000_000,), (100_000, 1)),
    Line("10^6 items", (1_000_000,), (1_000_000, 1)),
    Line("10^7 items", (16_777_216,), (10_000_000, 1)),
    # depth
    Line("depth 1, 300k from 4M", (4_194_304,), (300_000, 1)),
    Line("depth 2, 300k from 4M", (2048, 2048), (300_000, 2)),
    Line("depth 3, 300k from 4M", (128, 256, 128), (300_000, 3)),
    Line("depth 4, 300k from 4M", (64, 32, 64, 32), (300_000, 4)),
    Line("depth 5, 300k from 4M", (16, 16, 32, 16, 32), (300_000, 5)),
    Line("depth 2, 1000 from 64k", (256, 256), (1_000, 2)),
    Line("depth 4, 1000 from 64k", (16, 16, 16, 16), (1_000, 4)),
    Line("depth 2, 50k rows of 128 B", (512, 512, 32), (50_000, 2)),
    Line("depth 5, 50k rows of 64 B", (16, 8, 16, 8, 16, 16), (50_000, 5)),
    # rows
    _rows(3, 200_000, 3_000_000, "int8"),
    _rows(6, 200_000, 6_000_000, "float16"),
    _rows(16, 200_000, 32_000_000),
    _rows(48, 200_000, 48_000_000),
    _rows(64, 100_000, 64_000_000),
    _rows(128, 100_000, 64_000_000),
    _rows(256, 1, 64_000_000),
    _rows(256, 32, 64_000_000),
    _rows(256, 2_000, 64_000_000),
    _rows(512, 20_000, 64_000_000),
    _rows(1 << 10, 10_000, 64_000_000),
    _rows(2 << 10, 1_000, 64_000_000),
    _rows(4 << 10, 4_000, 80_000_000),
    _rows(16 << 10, 1_000, 80_000_000),
    _rows(64 << 10, 1, 128_000_000),
    _rows(64 << 10, 500, 128_000_000),
    # item sizes
    Line("300k int8 items of 16M", (16_777_216,), (300_000, 1), 0, "int8"),
    Line("300k float16 items of 16M", (16_777_216,), (300_000, 1), 0, "float16"),
    Line("300k float64 items of 8M", (8_388_608,), (300_000, 1), 0, "float64"),
    Line("300k complex128 items of 4M", (4_194_304,), (300_000, 1), 0, "complex128"),
    # batch_dims
    Line("batch_dims 1, 1000 x 100 items", (1000, 4096), (1000, 100, 1), 1),
    Line("batch_dims 2, 64x64 x 25 pairs", (64, 64, 32, 32), (64, 64, 25, 2), 2),
    Line("batch_dims 3, 32^3 x 4 items", (32, 32, 32, 64), (32, 32, 32, 4, 1), 3),
    Line("batch_dims 2, 32x32 x 8 rows of 1 KiB", (32, 32, 64, 256), (32, 32, 8, 1), 2),
    # clustered
    Line("1M clustered of 16M", (16_777_216,), (1_000_000, 1), 0, "float32", True),
    Line("300k clustered int8 of 16M", (16_777_216,), (300_000, 1), 0, "int8", True),
    Line("300k clustered pairs of 4M", (2048, 2048), (300_000, 2), 0, "float32", True),
    Line("100k clustered rows of 64", (1_000_000, 64), (100_000, 1), 0, "float32", True),
    _rows(4 << 10, 4_000, 80_000_000, clustered=True),
    Line("batch_dims 1, 64 x 4096 clustered", (64, 65_536), (64, 4096, 1), 1, "float32", True),
)  # fmt: skip


def make_inputs(line: Line) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Random data, and indices of which half are negative, save where they are clustered."""
    source = np.random.default_rng(0)
    data = source.integers(0, 100, line.data, np.uint8).astype(line.dtype)
    sizes = line.data[line.batch_dims : line.batch_dims + line.indices[-1]]
    columns = [source.integers(0 if line.clustered else -size, size, line.indices[:-1]) for size in sizes]
    if line.clustered:
        columns = [np.sort(column, axis=-1) for column in columns]
    return data, np.stack(columns, axis=-1)


def normalised(line: Line, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same indices without negative ones."""
    sizes = np.array(line.data[line.batch_dims : line.batch_dims + line.indices[-1]])
    return np.where(indices < 0, indices + sizes, indices)

"""The work of `kernels scatter`, by the shapes of its inputs, and its result by NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.operators.gather_elements import places_in_data
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.tensors.operator_signature import Reduction

Array = NDArray[Any]
UFUNCS: Final[dict[str, Any]] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class Inputs(NamedTuple):
    """Of a scatter; indices are 0 or more."""

    data: Array
    indices: NDArray[np.int64]
    updates: Array


@dataclass(frozen=True)
class Line:
    """A piece of work: ScatterND, or with an `axis` ScatterElements. Without a reduction no place comes twice."""

    name: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    reduction: Reduction
    dtype: str = "float32"
    axis: int | None = None

    @property
    def plan(self) -> ScatterNDPlan | ScatterElementsPlan:
        size = np.dtype(self.dtype).itemsize
        if self.axis is None:
            k = self.indices[-1]
            return ScatterNDPlan(
                prod(self.indices[:-1]), self.data[:k], prod(self.data[k:]), size, True, self.dtype, self.reduction
            )
        places = places_in_data(self.data, self.indices, self.axis)
        return ScatterElementsPlan(*places, size, True, self.dtype, self.reduction)

    @property
    def updates(self) -> tuple[int, ...]:
        """The shape of updates."""
        return self.indices if self.axis is not None else self.indices[:-1] + self.data[self.indices[-1] :]


def _lines() -> list[Line]:
    table, many, million = (100_000, 64), (100_000, 1), (1_000_000, 1)
    lines = [
        Line("2 rows of 2 into 2x2, set", (2, 2), (2, 1), "none"),
        Line("2 rows of 2 into 2x2, add", (2, 2), (2, 1), "add"),
        Line("10k rows of 64 into 100k, set", table, (10_000, 1), "none"),
        Line("10k rows of 64 into 100k, add", table, (10_000, 1), "add"),
        Line("100k rows of 64 into 100k, set", table, many, "none"),
        Line("100k rows of 64 into 100k, add", table, many, "add"),
        Line("100k rows of 64 into 100k, max", table, many, "max"),
        Line("100k rows of 64 into 100k, mul", table, many, "mul"),
        Line("100k rows of 64 into 100, add", (100, 64), many, "add"),
        Line("1M items into 1M, set", (1_000_000,), million, "none"),
        Line("1M items into 1M, add", (1_000_000,), million, "add"),
        Line("1M items into 1M, max", (1_000_000,), million, "max"),
        *(Line(f"1M items into 1,000, {name}", (1_000,), million, name) for name in ("add", "mul", "min", "max")),
        Line("1M items into 1, add", (1,), million, "add"),
        Line("1M items into 1, min", (1,), million, "min"),
        Line("1M pairs into 2048x2048, add", (2048, 2048), (1_000_000, 2), "add"),
    ]
    for dtype in ("int8", "float16", "float64"):
        lines += [
            Line(f"1M items into 1M, set, {dtype}", (1_000_000,), million, "none", dtype),
            Line(f"1M items into 1M, add, {dtype}", (1_000_000,), million, "add", dtype),
            Line(f"1M items into 1,000, add, {dtype}", (1_000,), million, "add", dtype),
            Line(f"100k rows of 64 into 100k, add, {dtype}", table, many, "add", dtype),
        ]
    square = (2048, 2048)
    lines += [
        Line("elements of 2x2, axis 0, add", (2, 2), (2, 2), "add", axis=0),
        Line("elements of 2048x2048, axis 0, set", square, square, "none", axis=0),
        Line("elements of 2048x2048, axis 1, set", square, square, "none", axis=1),
        Line("elements of 2048x2048, axis 0, add", square, square, "add", axis=0),
        Line("elements of 2048x2048, axis 1, add", square, square, "add", axis=1),
        Line("elements of 2048x2048, axis 1, min", square, square, "min", axis=1),
        Line("elements of 2048x2048 into 2048x16, axis 1, add", (2048, 16), square, "add", axis=1),
        Line("1M elements into 1,000, add", (1_000,), (1_000_000,), "add", axis=0),
    ]
    return lines


LINES: Final = tuple(_lines())


def make_inputs(line: Line) -> Inputs:
    """Random inputs; factors are 1 and -1, for products stay as large as they are then."""
    source = np.random.default_rng(0)

    def numbers(shape: tuple[int, ...]) -> Array:
        if line.reduction == "mul":
            return source.choice((-1, 1), shape).astype(line.dtype)
        if np.dtype(line.dtype).kind == "i":
            return source.integers(-100, 100, shape).astype(line.dtype)
        return source.standard_normal(shape).astype(line.dtype)

    if line.axis is not None:
        indices = source.integers(0, line.data[line.axis], line.indices)
        if line.reduction == "none":
            places = np.arange(line.data[line.axis]).reshape(
                [-1 if at == line.axis else 1 for at in range(len(line.data))]
            )
            spread = np.broadcast_to(places, line.data)
            indices = source.permuted(spread, axis=line.axis)[tuple(slice(size) for size in line.indices)].copy()
    else:
        sizes, tuples = line.data[: line.indices[-1]], prod(line.indices[:-1])
        flat = source.permutation(prod(sizes))[:tuples] if line.reduction == "none" else None
        chosen = source.integers(0, prod(sizes), tuples) if flat is None else flat
        indices = np.stack(np.unravel_index(chosen, sizes), axis=-1).reshape(line.indices)
    return Inputs(numbers(line.data), indices.astype(np.int64), numbers(line.updates))


def scatter_by_numpy(line: Line, inputs: Inputs, out: Array, *, absolute: bool = False) -> Array:
    """The scatter into `out`, which is returned; with `absolute` of the inputs' absolutes."""
    data, indices, updates = inputs
    if absolute:
        data, updates = np.abs(data), np.abs(updates)
    np.copyto(out, data)
    if line.axis is None:
        where: tuple[Any, ...] = tuple(np.moveaxis(indices, -1, 0))
    else:
        where = tuple(np.ogrid[tuple(slice(size) for size in indices.shape)])
        where = (*where[: line.axis], indices, *where[line.axis + 1 :])
    if line.reduction == "none":
        out[where] = updates
    else:
        UFUNCS[line.reduction].at(out, where, updates)
    return out

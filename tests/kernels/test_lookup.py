"""Lookups on both kernels of the CPU: pooled bags against a plain loop over the indices, bit by bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.kernels import numba_cpu
from app.kernels.check_lookup import BAD_OFFSETS, FeatureArrays
from app.operators.lookup_plan import FeaturePlan
from app.tensors.dtypes import DTYPES
from app.tensors.lookup_call import POOLINGS
from tests.conftest import samples, slow_but_for
from tests.for_each import for_each
from tests.http.server import run_program

FLOATS = ("float32", "float64", "float16", "bfloat16")
GAP = 0xA5


@pytest.fixture(scope="module")
def kernels(compiled: object) -> list[Any]:
    return [numba_cpu, import_module("app.kernels.reference")]


def values(items: int, dtype: str, source: random.Random) -> NDArray[Any]:
    """Items of a type: numbers of all sizes, signed zeros, infinities and NaN among them, or any bits."""
    kind = DTYPES[dtype]
    if kind.kind != "float":
        return np.frombuffer(source.randbytes(items * kind.carrier.itemsize), kind.carrier).view(kind.numpy)
    numbers = [source.choice((1.0, 0.1, -3.7, 1e-3, 1e4, -0.0, 65504.0, 6e-8)) * source.random() for _ in range(items)]
    found = np.array(numbers, np.float64)
    for number in (np.nan, np.inf, -np.inf, -0.0):
        if items and source.random() < 0.1:
            found[source.randrange(items)] = number
    with np.errstate(over="ignore"):
        return found.astype(kind.numpy)


def looped(
    table: NDArray[Any],
    indices: Sequence[int],
    offsets: Sequence[int],
    weights: NDArray[Any] | None,
    fill: NDArray[Any] | None,
    pooling: str,
) -> NDArray[Any]:
    """The rows of each bag added one after the other in float32 (float64 for float64), and rounded once."""
    wide: Any = np.float64 if table.dtype == np.float64 else np.float32
    bags: list[Any] = []
    for begin, end in pairwise([*offsets, len(indices)]):
        total: Any = np.zeros(table.shape[1], wide)
        for at in range(begin, end):
            index = indices[at]
            row = (fill if index == len(table) and fill is not None else table[index]).astype(wide)
            if pooling == "max":
                total = row if at == begin else np.where((total >= row) | np.isnan(total), total, row)
            else:
                total = total + (row if weights is None else row * weights[at].astype(wide))
        if pooling == "mean" and end > begin:
            total = total / wide(end - begin)
        bags.append(total.astype(table.dtype))
    return np.array(bags, table.dtype).reshape(len(bags), table.shape[1])


def bits(array: NDArray[Any]) -> bytes:
    """The bits, of which those of every NaN are the same: no text says which NaN a sum is."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "fV" and array.size:
        array = array.copy()
        with np.errstate(invalid="ignore"):
            array[np.isnan(array)] = np.nan
    return array.tobytes()


class Case:
    """Features of one lookup, their arrays, and what the columns of each have to be."""

    def __init__(self, source: random.Random, features: int, joined: bool) -> None:
        self.plans: list[FeaturePlan] = []
        self.arrays: list[FeatureArrays] = []
        self.expected: list[NDArray[Any]] = []
        dtype = source.choice(FLOATS)
        rows_out = source.choice((0, 1, 3, 20))
        drawn = [
            self._drawn(source, dtype if joined else source.choice((*FLOATS, *DTYPES)), rows_out)
            for _ in range(features)
        ]
        width = sum(found.shape[1] * found.itemsize for *_, found in drawn)
        pad = source.choice((0, 1, 3))
        item_size = DTYPES[dtype].carrier.itemsize
        whole = np.zeros(rows_out * (width // item_size + pad), DTYPES[dtype].carrier)
        column = 0
        for number, (plan, table, indices, offsets, weights, fill, found) in enumerate(drawn):
            own = found.shape[1] * found.itemsize
            out = whole if joined else np.frombuffer(bytes([GAP]) * found.nbytes, table.dtype).copy()
            self.plans.append(
                replace(
                    plan,
                    output=0 if joined else number,
                    stride=width + pad * item_size if joined else own,
                    column=column if joined else 0,
                )
            )
            self.arrays.append(FeatureArrays(table, indices, offsets, weights, fill, out))
            self.expected.append(found)
            column += own

    def _drawn(self, source: random.Random, dtype: str, rows_out: int) -> tuple[Any, ...]:
        kind = DTYPES[dtype]
        pooling = source.choice(POOLINGS) if dtype in FLOATS else "none"
        rows, items = source.choice((1, 2, 50)), source.choice((0, 1, 2, 3, 4, 7, 8, 15, 16, 33, 64, 65, 100, 130))
        index_type = source.choice((np.int32, np.int64))
        table = values(rows * items, dtype, source) if dtype != "string" else np.arange(rows * items)
        fill = values(items, dtype, source) if source.random() < 0.3 and dtype != "string" else None
        group = 1
        offsets = weights = None
        if pooling == "none":
            group = source.choice((1, 1, 2, 5))
            count = rows_out * group
        else:
            sizes = [source.choice((0, 1, 2, 7, 200)) for _ in range(rows_out)]
            count = sum(sizes)
            offsets = np.array([sum(sizes[:bag]) for bag in range(rows_out)], index_type)
            if pooling == "sum" and source.random() < 0.4:
                weights = values(count, dtype, source)
        most = rows + (fill is not None)
        chosen = [source.randrange(most) for _ in range(count)]
        if pooling == "none":
            every = [table[items * at : items * at + items] if at < rows else fill for at in chosen]
            found = (
                np.array(every, table.dtype).reshape(rows_out, group * items)
                if count * items
                else np.empty((rows_out, group * items), table.dtype)
            )
        else:
            assert offsets is not None
            with np.errstate(all="ignore"):
                found = looped(table.reshape(rows, items), chosen, offsets.tolist(), weights, fill, pooling)
        size = kind.carrier.itemsize
        plan = FeaturePlan(
            rows,
            items,
            size,
            dtype,
            pooling,
            count,
            0 if offsets is None else rows_out,
            weights is not None,
            group,
            0,
            0,
            0,
        )
        carried = [None if array is None else array.view(kind.carrier) for array in (table, weights, fill)]
        return plan, carried[0], np.array(chosen, index_type), offsets, carried[1], carried[2], found

    def check(self, threads: int, kernel: Any) -> None:
        for array in self.arrays:
            array.out.view(np.uint8)[:] = GAP
        assert kernel.lookup(self.plans, self.arrays, threads) == -1
        for plan, array, found in zip(self.plans, self.arrays, self.expected, strict=True):
            rows, own = plan.output_rows, found.shape[1] * found.itemsize
            if not rows or not own:
                continue
            lines = array.out.view(np.uint8).reshape(rows, plan.stride)
            written = np.ascontiguousarray(lines[:, plan.column : plan.column + own]).view(found.dtype)
            assert bits(written) == bits(found), plan
        if self.plans and self.plans[0].output_rows and self.plans[-1].stride:
            last = self.plans[-1]
            lines = self.arrays[-1].out.view(np.uint8).reshape(last.output_rows, last.stride)
            behind = last.column + last.group * last.row_bytes
            assert (lines[:, behind:] == GAP).all(), "written beyond its columns"


def test_bags_have_the_bits_of_a_plain_loop_by_any_number_of_threads(kernels: list[Any]) -> None:
    for seed in range(samples(400)):
        case = Case(random.Random(seed), 1 + seed % 20, joined=seed % 2 == 0)
        for kernel in kernels:
            for threads in (1, 2, 7) if kernel.splits else (1,):
                case.check(threads, kernel)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_much_work_is_shared_by_any_number_of_threads(compiled: object, threads: int) -> None:
    source = np.random.default_rng(5)
    table = source.standard_normal((5000, 96), dtype=np.float32)
    sizes = source.integers(0, 60, 2000)
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    indices = source.integers(0, 5000, int(sizes.sum()))
    out = np.zeros(2000 * 96, np.uint32)
    plan = FeaturePlan(5000, 96, 4, "float32", "sum", len(indices), 2000, False, 1, 0, 384, 0)
    arrays = FeatureArrays(table.view(np.uint32).reshape(-1), indices, offsets, None, None, out)
    assert numba_cpu.lookup([plan] * 3, [arrays] * 3, threads) == -1
    wanted = looped(table, indices.tolist(), offsets.tolist(), None, None, "sum")
    assert out.tobytes() == wanted.tobytes()


def feature(**fields: Any) -> tuple[FeaturePlan, FeatureArrays]:
    """Two bags of three rows of two float32, and their arrays; fields of either may be others."""
    plan = FeaturePlan(3, 2, 4, "float32", "sum", 5, 2, False, 1, 0, 8, 0)
    arrays = FeatureArrays(
        np.arange(6, dtype=np.float32).view(np.uint32),
        np.array([0, 1, 2, 0, 1]),
        np.array([0, 3]),
        None,
        None,
        np.zeros(4, np.uint32),
    )
    names = {name: value for name, value in fields.items() if name in FeatureArrays._fields}
    return replace(plan, **{name: value for name, value in fields.items() if name not in names}), arrays._replace(
        **names
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bad", [-1, 3, 2**40, -(2**62), 2**63 - 1])
def test_a_bad_index_is_found_in_whichever_feature(kernels: list[Any], bad: int, threads: int) -> None:
    for kernel in kernels:
        for number in range(3):
            features = [feature() for _ in range(3)]
            features[number][1].indices[4] = bad
            plans, arrays = zip(*features, strict=True)
            assert kernel.lookup(plans, arrays, threads) == number
            features[number] = feature(
                indices=np.array([0, 0, 0, 0, bad]), pooling="none", offsets=None, bags=0, out=np.zeros(10, np.uint32)
            )
            plans, arrays = zip(*features, strict=True)
            assert kernel.lookup(plans, arrays, threads) == number


@pytest.mark.parametrize("offsets", [[1, 3], [0, 6], [3, 0], [-1, 0], [0, -1], [0, 2**62], [-(2**63), 1]])
def test_wrong_offsets_are_found_before_any_index(kernels: list[Any], offsets: list[int]) -> None:
    for kernel in kernels:
        good, wrong = feature(indices=np.array([9, 9, 9, 9, 9])), feature(offsets=np.array(offsets))
        assert kernel.lookup([good[0], wrong[0]], [good[1], wrong[1]]) == 1 + BAD_OFFSETS


def test_indices_without_a_bag_are_wrong_offsets(kernels: list[Any]) -> None:
    for kernel in kernels:
        plan, arrays = feature(offsets=np.empty(0, np.int64), bags=0)
        assert kernel.lookup([plan], [arrays]) == BAD_OFFSETS
        plan, arrays = feature(offsets=np.empty(0, np.int64), bags=0, indices=np.empty(0, np.int64))
        with pytest.raises(TypeError):
            kernel.lookup([plan], [arrays])


def _readonly(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


REFUSED: dict[str, dict[str, Any]] = {
    "a table of other size": {"table": np.zeros(5, np.uint32)},
    "a table of other items": {"table": np.zeros(6, np.float32)},
    "a table of two axes": {"table": np.zeros((3, 2), np.uint32)},
    "no table": {"table": None},
    "a list": {"table": [0] * 6},
    "more rows": {"rows": 4},
    "negative rows": {"rows": -3, "row_items": -2},
    "rows beyond int64": {"rows": 2**63},
    "a product beyond int64": {"rows": 2**62, "row_items": 4},
    "indices of another type": {"indices": np.zeros(5, np.uint64)},
    "indices of int16": {"indices": np.zeros(5, np.int16)},
    "indices with gaps": {"indices": np.zeros(10, np.int64)[::2]},
    "fewer indices": {"indices": np.zeros(4, np.int64)},
    "no offsets": {"offsets": None},
    "offsets of another type": {"offsets": np.array([0, 3], np.int32)},
    "fewer offsets": {"offsets": np.array([0])},
    "weights not planned": {"weights": np.zeros(5, np.uint32)},
    "weights planned alone": {"weighted": True},
    "fewer weights": {"weights": np.zeros(4, np.uint32), "weighted": True},
    "weights of a mean": {"weights": np.zeros(5, np.uint32), "weighted": True, "pooling": "mean"},
    "a fill of other size": {"fill": np.zeros(3, np.uint32)},
    "a small output": {"out": np.zeros(3, np.uint32)},
    "a read-only output": {"out": _readonly(np.zeros(4, np.uint32))},
    "an output of other items": {"out": np.zeros(4, np.uint64)},
    "a column behind the output": {"column": 12},
    "a column within an item": {"column": 2, "out": np.zeros(8, np.uint32)},
    "a negative column": {"column": -4},
    "rows that overlap": {"stride": 4},
    "a negative stride": {"stride": -8},
    "a huge stride": {"stride": 2**62},
    "groups where pooled": {"group": 2, "stride": 16, "out": np.zeros(8, np.uint32)},
    "no group": {"group": 0},
    "pooled integers": {"dtype": "int32"},
    "items of another type": {"dtype": "float64"},
    "groups that do not fill rows": {
        "pooling": "none", "offsets": None, "bags": 0, "group": 2, "stride": 16, "out": np.zeros(64, np.uint32),
    },
    "offsets without pooling": {"pooling": "none", "out": np.zeros(64, np.uint32)},
}  # fmt: skip


@for_each("wrong", REFUSED)
def test_arrays_that_are_not_as_the_plan_says_are_refused(kernels: list[Any], wrong: str) -> None:
    good, bad = feature(), feature(**REFUSED[wrong])
    for kernel in kernels:
        for pair in ([good, bad], [bad, good]):
            plans, arrays = zip(*pair, strict=True)
            with pytest.raises(TypeError):
                kernel.lookup(plans, arrays, 2)
            assert not good[1].out.any(), "touched"
        with pytest.raises(TypeError):
            kernel.lookup([good[0]], [])


@pytest.mark.parametrize("kernel", slow_but_for(("numba",), ("numba", "numpy")))
def test_no_kernel_reads_or_writes_outside_of_its_arrays(kernel: str, compiled: Path) -> None:
    count = str(samples(2000 if kernel == "numba" else 400))
    extra = [str(compiled)] if kernel == "numba" else []
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.kernels.guarded_lookup", count, "16", *extra]
    done = run_program(command, timeout=None, compiled=compiled)
    assert done.returncode == 0, done.stderr[-3000:]

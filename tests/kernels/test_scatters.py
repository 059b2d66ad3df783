"""ScatterND and ScatterElements on every kernel of the CPU, against loops over coordinates."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.kernels import Kernel, numba_cpu
from app.operators.dialects import SCATTER_ELEMENTS, SCATTERND
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.operators.scatters import plan_scatter_elements, plan_scatternd
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.operator_signature import REDUCTIONS, Reduction
from app.tensors.tensor import Tensor
from tests.conftest import samples, slow_but_for
from tests.for_each import for_each
from tests.kernels import scatter_loops
from tests.kernels.cpu_kernels import always_shared, every_kernel
from tests.kernels.reference import EXTREMES
from tests.kernels.scatter_loops import same

__all__ = ["always_shared", "every_kernel"]

Array = NDArray[Any]
TYPES = [name for name, row in DTYPES.items() if row.kind != "string"]
REDUCED = [name for name, row in DTYPES.items() if row.arithmetic]
FEW = ("float16", "float32", "int8", "uint64")
"""Types of `make test` where it counts how many threads or how long runs are: one of each way to reduce."""
ALL_CASES = [("none", name) for name in TYPES] + [(each, name) for each in REDUCTIONS[1:] for name in REDUCED]
THREADS = (1, 2, 3, 7)


@dataclass
class Scatter:
    """A ScatterND, or a ScatterElements along an axis."""

    data: Array
    indices: Array
    updates: Array
    dtype: str
    reduction: str
    axis: int | None = None
    lead: int = 0
    """Items before the output, which then begins anywhere in a cache line."""

    @cached_property
    def plan(self) -> ScatterNDPlan | ScatterElementsPlan:
        kind, nothing = DTYPES[self.dtype], np.zeros(0, np.int64)
        data = Tensor(kind, self.data.shape, nothing)
        updates = Tensor(kind, self.updates.shape, nothing)
        indices = Tensor(DTYPES["int64"], self.indices.shape, nothing)
        parameters = (self.axis or 0,)
        call = Call("gather", data, indices, parameters, "onnx-18", reduction=self.reduction)  # type: ignore[arg-type]
        call.further = {"updates": updates}
        if self.axis is None:
            return plan_scatternd(SCATTERND["onnx-18"], call, data, {"updates": updates})[0]
        return plan_scatter_elements(SCATTER_ELEMENTS["onnx-18"], call, data, {"updates": updates})[0]

    @cached_property
    def expected(self) -> Array:
        if self.axis is None:
            return scatter_loops.scatter_nd(self.data, self.indices, self.updates, self.reduction)
        return scatter_loops.scatter_elements(self.data, self.indices, self.updates, self.axis, self.reduction)

    def run(self, kernel: Kernel, threads: int = 1, indices: Array | None = None) -> tuple[int, Array]:
        """The first bad component, and the output."""
        out = np.empty(self.lead + self.plan.output_items, DTYPES[self.dtype].carrier)[self.lead :]
        data, updates = (array.reshape(-1).view(out.dtype) for array in (self.data, self.updates))
        entries = self.indices if indices is None else indices
        first = kernel.run(self.plan, data, entries.reshape(-1), out, threads, further={"updates": updates})
        return first, out.view(self.data.dtype).reshape(self.data.shape)

    def check(self, kernels: Iterable[Any] = (numba_cpu,)) -> None:
        """On one thread the result is what is expected, and any number of threads gives the same bits."""
        for kernel in kernels:
            found = [self.run(kernel, threads) for threads in (THREADS if kernel.splits else (1,))]
            assert same(found[0][1], self.expected), kernel.name
            assert {(first, out.tobytes()) for first, out in found} == {(-1, found[0][1].tobytes())}, kernel.name

    def check_bad(self, bad: list[int], wrong: Any, kernels: Iterable[Any] = (numba_cpu,)) -> None:
        """Any number of threads finds the first of the entries that are wrong."""
        spoiled = self.indices.copy().reshape(-1)
        spoiled[bad] = wrong
        for kernel in kernels:
            for threads in THREADS if kernel.splits else (1,):
                assert self.run(kernel, threads, spoiled)[0] == min(bad)


def filled(shape: tuple[int, ...], dtype: str, source: random.Random) -> Array:
    """Random bits: floats with NaN, infinities and subnormal numbers among them."""
    row = DTYPES[dtype]
    if row.kind == "bool":
        return np.array([source.random() < 0.5 for _ in range(prod(shape))], np.bool_).reshape(shape)
    array = np.frombuffer(source.randbytes(prod(shape) * row.item_size), row.numpy).copy()
    if row.kind == "float" and source.random() < 0.7:  # such as can be added without soon being infinite
        with np.errstate(all="ignore"):
            array = np.array([source.choice((0.0, -0.0, source.gauss(0, 2))) for _ in range(array.size)], row.numpy)
    return array.reshape(shape)


def drawn(
    shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int | None, dtype: str, reduction: str,
    source: random.Random,
) -> Scatter:  # fmt: skip
    """A scatter of random items by random indices, zeros where there is nothing to pick."""
    sizes = np.array(shape[: index_shape[-1]] if axis is None else shape[axis])
    numbers = np.random.default_rng(source.getrandbits(32))
    indices = np.where(sizes > 0, numbers.integers(-sizes, np.maximum(sizes, 1), index_shape), 0)
    updates_shape = (*index_shape[:-1], *shape[index_shape[-1] :]) if axis is None else index_shape
    return Scatter(filled(shape, dtype, source), indices, filled(updates_shape, dtype, source), dtype, reduction, axis)


@st.composite
def scatters(draw: st.DrawFn) -> Scatter:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 0)), min_size=1, max_size=4)))
    axis = draw(st.none() | st.integers(0, len(shape) - 1))
    if axis is None:
        index_shape = (*draw(st.lists(st.integers(0, 5), max_size=2)), draw(st.integers(1, len(shape))))
    else:
        sizes = [draw(st.sampled_from((size, size, size // 2))) for size in shape]
        index_shape = (*sizes[:axis], draw(st.integers(0, 6)), *sizes[axis + 1 :])
    reduction, dtype = draw(st.sampled_from(ALL_CASES))
    return drawn(shape, index_shape, axis, dtype, reduction, draw(st.randoms(use_true_random=False)))


@settings(max_examples=samples(1200), deadline=None)
@given(scatters())
def test_a_scatter_is_the_loop_of_its_text(every_kernel: list[Kernel], scatter: Scatter) -> None:
    shape = scatter.data.shape
    sizes = shape[: scatter.indices.shape[-1]] if scatter.axis is None else (shape[scatter.axis],)
    if scatter.indices.size and 0 in sizes:
        assert [scatter.run(each)[0] for each in every_kernel] == [sizes.index(0)] * 2
    else:
        scatter.check(every_kernel)


@for_each("reduction", REDUCTIONS)
@for_each("dtype", slow_but_for(("float16", "int8"), REDUCED))
@for_each(
    ("shape", "index_shape", "axis"),
    [
        # Few targets for many updates.
        ((40, 3), (1500, 1), None), ((7, 9), (3000, 2), None), ((1, 5, 70), (60, 2), None), ((900,), (5000, 1), None),
        ((1,), (700, 1), None),
        ((30, 40), (30, 70), 1), ((30, 40), (110, 35), 0), ((12, 9, 5), (11, 30, 4), 1), ((2000,), (7000,), 0),
    ],
)  # fmt: skip
def test_any_number_of_threads_gives_the_same_bits_where_updates_collide(
    every_kernel: list[Kernel],
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    axis: int | None,
    dtype: str,
    reduction: Reduction,
) -> None:
    source = random.Random(dtype)
    scatter = drawn(shape, index_shape, axis, dtype, reduction, source)
    scatter.check(every_kernel)
    bad, wrong = source.sample(range(scatter.indices.size), 3), source.choice((2**62, -(2**62), *EXTREMES[:2]))
    scatter.check_bad(bad, wrong, every_kernel)


@for_each("reduction", REDUCTIONS)
@for_each("dtype", slow_but_for(FEW, REDUCED))
def test_single_items_are_right_wherever_in_a_block_an_entry_is_negative_or_bad(
    always_shared: None, dtype: str, reduction: Reduction
) -> None:
    """Entries from 0 on are applied as they are, four at a time, until another one comes."""
    source, numbers = random.Random(dtype + reduction), np.random.default_rng(9)
    rows, size, count = 3, 9_000, 519  # two blocks and seven of a row, of so much output that threads share it
    data = np.resize(filled((500,), dtype, source), (rows, size))
    updates = filled((rows, count), dtype, source)
    for place in (0, 3, 255, 256, count - 2, count - 1):
        indices = numbers.integers(0, size, (rows, count))
        indices[1, place] = -1
        one_row = Scatter(data[1], indices[1].reshape(-1, 1), updates[1], dtype, reduction)
        one_row.check()
        if place in (0, 255, count - 1):
            Scatter(data, indices, updates, dtype, reduction, axis=1).check()
        for wrong in (size, -size - 1, 2**63 - 1, -(2**63)):
            one_row.check_bad([place, count - 1], (wrong, size))


@for_each("reduction", ["add", "mul", "min", "max"])
@for_each("dtype", slow_but_for(FEW, REDUCED))
def test_runs_of_one_place_are_reduced_in_order_and_any_nan_stays_the_same(
    always_shared: None, dtype: str, reduction: Reduction
) -> None:
    """Blocks that name one place, for one thread or for all of them, with every tenth update a NaN."""
    source = random.Random(dtype + reduction)
    runs = [(place, length) for length in (256, 300, 1, 700, 2, 512) for place in (0, 11_999, 6_000)]
    indices = np.repeat([place for place, _ in runs], [length for _, length in runs]).reshape(-1, 1)
    data = np.resize(filled((100,), dtype, source), 16 * len(indices))
    for nans in (False, True) if DTYPES[dtype].kind == "float" else (False,):
        updates = filled((len(indices),), dtype, source)
        if nans:
            payloads = source.choices(range(1, 100), k=len(updates[::10]))
            carrier = np.dtype(f"u{updates.itemsize}")
            infinity = np.array(np.inf, updates.dtype).view(carrier)
            sign = np.array(-0.0, updates.dtype).view(carrier)
            odd = np.array([int(infinity) | number | (int(sign) * (number & 1)) for number in payloads], carrier)
            updates[::10] = odd.view(updates.dtype)
        Scatter(data, indices, updates, dtype, reduction).check()


@for_each("reduction", ["min", "max"])
@for_each("dtype", ["float32", "float64"])
def test_the_least_or_greatest_of_many_for_one_place_is_found_whatever_is_there(
    compiled: None, dtype: str, reduction: Reduction
) -> None:
    """Of numbers among which is no NaN and no -0, before which the place may have either."""
    kind = DTYPES[dtype].numpy
    nan = np.array([np.nan], kind)
    nan.view(f"u{kind.itemsize}")[0] |= 77
    many = (
        *([0.0], [2.0, 0.0, 3.0], [-2.0, 0.0, -3.0], [-2.0, -3.0], [0.5, np.inf, 2.0], [-np.inf, -0.5]),
        *([0.0, *[-1.0] * 7], [0.0, *[1.0] * 7]),
    )
    for there in (-0.0, 0.0, nan[0], np.inf, -np.inf, 1.0, -1.0):
        for numbers in many:
            for count in (2, 7, 8, 9, 15, 16, 17, 100, 256, 300):
                updates = np.resize(np.array(numbers, kind), count)
                scatter = Scatter(np.full(64, there, kind), np.full((count, 1), 5), updates, dtype, reduction)
                assert scatter.run(numba_cpu)[1].tobytes() == scatter.expected.tobytes(), (there, numbers, count)


def named_rows(numbers: np.random.Generator, size: tuple[int, ...], rows: Array) -> Array:
    """Indices of these rows, half of them counted from the end."""
    indices = np.stack(np.unravel_index(rows, size), -1)
    indices -= np.where(numbers.random(indices.shape) < 0.5, size, 0)
    return indices


def check_rows(scatter: Scatter, numbers: np.random.Generator) -> None:
    """The scatter, and bad entries at its beginning, its end and somewhere."""
    scatter.check()
    last = scatter.indices.size - 1
    for bad in ([0], [last], numbers.integers(0, last + 1, 3).tolist()):
        scatter.check_bad(bad, numbers.choice((2**62, -(2**62), *EXTREMES[:2], max(scatter.data.shape[:-1]))))


@for_each(("size", "tuples"), [((1,), 3), ((300,), 150), ((257,), 2000), ((40, 21), 420), ((3, 2, 50), 160)])
@for_each("width", [128, 129, 191, 200, 256, 1000, 5000])
def test_rows_written_once_are_those_of_the_last_update_or_of_data(
    always_shared: None, size: tuple[int, ...], tuples: int, width: int
) -> None:
    """Rows that no update names, one names and several name, in arrays that begin anywhere in a cache line."""
    numbers = np.random.default_rng((width, tuples))
    rows = prod(size)
    named = numbers.integers(0, max(1, rows * 3 // 4), tuples)
    data, updates = (
        numbers.integers(0, 256, count * width + 64).astype(np.uint8)[start:][: count * width]
        for count, start in zip((rows, tuples), numbers.integers(0, 64, 2), strict=True)
    )
    data, updates = data.reshape(*size, width), updates.reshape(tuples, width)
    scatter = Scatter(data, named_rows(numbers, size, named), updates, "uint8", "none", lead=int(numbers.integers(64)))
    expected = data.reshape(rows, width).copy()
    for place, update in zip(named.tolist(), updates, strict=True):
        expected[place] = update
    scatter.expected = expected.reshape(data.shape)
    check_rows(scatter, numbers)


@for_each("reduction", slow_but_for(("add", "max"), ("add", "mul", "min", "max")))
@for_each(
    ("dtype", "items", "size", "tuples"),
    [("float32", 4096, (3,), 7), ("float16", 64, (50, 4), 150), ("int8", 131, (1,), 300)],
)
def test_rows_reduced_piece_by_piece_are_those_of_the_loop(
    always_shared: None, size: tuple[int, ...], tuples: int, reduction: Reduction, dtype: str, items: int
) -> None:
    """Many updates of some rows and none of others, as one thread reduces them."""
    numbers, rows = np.random.default_rng((items, tuples)), prod(size)
    named = np.concatenate([numbers.integers(0, rows, tuples - tuples // 3), np.full(tuples // 3, rows - 1)])
    bits = filled((1_000,), dtype, random.Random(items))
    data, updates = np.resize(bits, (*size, items)), np.resize(bits[333:], (tuples, items))
    indices = named_rows(numbers, size, numbers.permutation(named))
    check_rows(Scatter(data, indices, updates, dtype, reduction), numbers)


@for_each("index_type", slow_but_for(("int64",), ("int64", "int16", "int32")))
@for_each(("dtype", "reduction"), [("complex128", "none"), ("float32", "add"), ("float16", "mul"), ("int8", "max")])
@for_each(("size", "rows", "data_columns", "columns"), [(9, 4, 1500, 1100), (9, 4, 600, 1), (3000, 2, 600, 150)])
def test_columns_of_elements_are_shared_along_the_first_axis(
    always_shared: None,
    size: int,
    rows: int,
    data_columns: int,
    columns: int,
    dtype: str,
    reduction: Reduction,
    index_type: str,
) -> None:
    """Along axis 0 an entry names an item of its own column: threads divide the columns, and check all the entries."""
    source, numbers = random.Random(dtype), np.random.default_rng(columns)
    indices = numbers.integers(-size, size, (rows, columns)).astype(index_type)
    data = np.resize(filled((500,), dtype, source), (size, data_columns))
    updates = np.resize(filled((377,), dtype, source), (rows, columns))
    scatter = Scatter(data, indices, updates, dtype, reduction, axis=0)
    scatter.check()
    for bad in (source.sample(range(indices.size), 3), [columns - 1], [indices.size - 1, columns * (rows - 1)]):
        scatter.check_bad(bad, source.choice((size, -size - 1, 2**15 - 1)))


def test_rows_longer_than_a_block_are_reduced(every_kernel: list[Kernel]) -> None:
    numbers = np.random.default_rng(1)
    data, updates = (numbers.normal(size=(rows, 70_000)).astype(np.float32) for rows in (3, 4))
    indices = np.array([[1], [-1], [1], [0]])
    ways: dict[str, Any] = {"none": lambda _, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum}
    for reduction in REDUCTIONS:
        scatter = Scatter(data, indices, updates, "float32", reduction)
        scatter.expected = data.copy()
        for (row,), update in zip(indices.tolist(), updates, strict=True):
            scatter.expected[row] = ways.get(reduction, np.maximum)(scatter.expected[row], update)
        scatter.check(every_kernel)


@for_each("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_nan_wins_the_first_one_and_zeros_have_an_order(every_kernel: list[Kernel], dtype: str) -> None:
    kind = DTYPES[dtype].numpy
    bits = np.dtype(f"u{kind.itemsize}")
    quiet = np.array([np.nan], kind).view(bits)[0]
    first, second = (np.array([quiet | bits.type(mark)], bits).view(kind)[0] for mark in (1, 2))
    data = np.array([first, 1.0, 0.0, -0.0, 1.0, 5.0], kind)
    indices = np.array([[0], [1], [1], [2], [3], [4], [4], [5]])
    updates = np.array([second, first, second, -0.0, 0.0, second, -7.0, 5.0], kind)
    for reduction, zeros in (("min", (-0.0, -0.0)), ("max", (0.0, 0.0))):
        expected = np.array([first, first, *zeros, second, 5.0], kind)
        for kernel in every_kernel:
            assert Scatter(data, indices, updates, dtype, reduction).run(kernel)[1].tobytes() == expected.tobytes()

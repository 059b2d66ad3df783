"""ScatterND and ScatterElements on every kernel of the CPU, against loops over coordinates."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
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
from tests.conftest import SOAK, samples, slow_but_for
from tests.for_each import for_each
from tests.kernels import scatter_loops
from tests.kernels.cpu_kernels import always_shared, every_kernel, kernel
from tests.kernels.reference import EXTREMES
from tests.kernels.scatter_loops import same

__all__ = ["always_shared", "every_kernel", "kernel"]

Plan = ScatterNDPlan | ScatterElementsPlan
Array = NDArray[Any]
TYPES = [name for name, row in DTYPES.items() if row.kind != "string"]
REDUCED = [name for name, row in DTYPES.items() if row.arithmetic]
FEW = ("float16", "float32", "int8", "uint64")
"""Types of `make test` where it counts how many threads or how long runs are: one of each way to reduce."""
ALL_CASES = [("none", name) for name in TYPES] + [(each, name) for each in REDUCTIONS[1:] for name in REDUCED]
THREADS = (1, 2, 3, 7)


def _call(shape: tuple[int, ...], indices: Array, updates_shape: tuple[int, ...], dtype: str, reduction: str) -> Call:
    nothing = np.zeros(0, np.int64)
    data, index_tensor = Tensor(DTYPES[dtype], shape, nothing), Tensor(DTYPES["int64"], indices.shape, nothing)
    call = Call("gather", data, index_tensor, (0,), "onnx-18", reduction=reduction)  # type: ignore[arg-type]
    call.further = {"updates": Tensor(DTYPES[dtype], updates_shape, nothing)}
    return call


def _updates(call: Call) -> dict[str, Tensor]:
    updates = call.further["updates"]
    assert isinstance(updates, Tensor)
    return {"updates": updates}


def nd_plan(shape: tuple[int, ...], indices: Array, dtype: str, reduction: str) -> ScatterNDPlan:
    call = _call(shape, indices, (*indices.shape[:-1], *shape[indices.shape[-1] :]), dtype, reduction)
    assert isinstance(call.data, Tensor)
    return plan_scatternd(SCATTERND["onnx-18"], call, call.data, _updates(call))[0]


def elements_plan(shape: tuple[int, ...], indices: Array, axis: int, dtype: str, reduction: str) -> ScatterElementsPlan:
    call = _call(shape, indices, indices.shape, dtype, reduction)
    call.parameters = (axis,)
    assert isinstance(call.data, Tensor)
    return plan_scatter_elements(SCATTER_ELEMENTS["onnx-18"], call, call.data, _updates(call))[0]


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


def run(kernel: Kernel, plan: Plan, data: Array, indices: Array, updates: Array, threads: int = 1) -> tuple[int, Array]:
    out = np.empty(plan.output_items, DTYPES[plan.dtype].carrier)
    arrays = [array.reshape(-1).view(out.dtype) for array in (data, updates)]
    first = kernel.run(plan, arrays[0], indices.reshape(-1), out, threads, further={"updates": arrays[1]})
    return first, out.view(data.dtype).reshape(data.shape)


def check(kernel: Kernel, plan: Plan, data: Array, indices: Array, updates: Array, expected: Array) -> None:
    """On one thread the result is what is expected, and any number of threads gives the same bits."""
    found = [run(kernel, plan, data, indices, updates, threads) for threads in (THREADS if kernel.splits else (1,))]
    assert same(found[0][1], expected)
    assert {(first, out.tobytes()) for first, out in found} == {(-1, found[0][1].tobytes())}


def check_bad(
    kernel: Kernel, plan: Plan, data: Array, indices: Array, updates: Array, bad: list[int], wrong: Any
) -> None:
    """Any number of threads finds the first of the entries that are wrong."""
    spoiled = indices.copy().reshape(-1)
    spoiled[bad] = wrong
    for threads in THREADS if kernel.splits else (1,):
        assert run(kernel, plan, data, spoiled, updates, threads)[0] == min(bad)


@st.composite
def nd_cases(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], random.Random]:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 0)), min_size=1, max_size=4)))
    outer = tuple(draw(st.lists(st.integers(0, 5), max_size=2)))
    depth = draw(st.integers(1, len(shape)))
    return shape, (*outer, depth), draw(st.randoms(use_true_random=False))


@settings(max_examples=samples(600), deadline=None)
@given(nd_cases(), st.sampled_from(ALL_CASES))
def test_scatternd_is_the_loop_of_its_text(
    every_kernel: list[Kernel], case: tuple[tuple[int, ...], tuple[int, ...], random.Random], kind: tuple[str, str]
) -> None:
    (shape, index_shape, source), (reduction, dtype) = case, kind
    sizes = shape[: index_shape[-1]]
    flat = [source.randrange(-size, size) if size else 0 for _ in range(prod(index_shape[:-1])) for size in sizes]
    indices = np.array(flat, np.int64).reshape(index_shape)
    data = filled(shape, dtype, source)
    updates = filled((*index_shape[:-1], *shape[index_shape[-1] :]), dtype, source)
    plan = nd_plan(shape, indices, dtype, reduction)
    if indices.size and 0 in sizes:
        bad = sizes.index(0)
        assert [run(each, plan, data, indices, updates)[0] for each in every_kernel] == [bad, bad]
        return
    expected = scatter_loops.scatter_nd(data, indices, updates, reduction)
    for each in every_kernel:
        first, out = run(each, plan, data, indices, updates)
        assert first == -1
        assert same(out, expected), (each.name, out, expected)


@st.composite
def elements_cases(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int, random.Random]:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 0)), min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))
    index_shape = tuple(
        draw(st.integers(0, 6)) if at == axis else draw(st.sampled_from((size, size, size // 2)))
        for at, size in enumerate(shape)
    )
    return shape, index_shape, axis, draw(st.randoms(use_true_random=False))


@settings(max_examples=samples(600), deadline=None)
@given(elements_cases(), st.sampled_from(ALL_CASES), st.integers(1, 3))
def test_scatter_elements_is_the_loop_of_its_text(
    every_kernel: list[Kernel],
    case: tuple[tuple[int, ...], tuple[int, ...], int, random.Random],
    kind: tuple[str, str],
    threads: int,
) -> None:
    (shape, index_shape, axis, source), (reduction, dtype) = case, kind
    size = shape[axis]
    flat = [source.randrange(-size, size) if size else 0 for _ in range(prod(index_shape))]
    indices = np.array(flat, np.int64).reshape(index_shape)
    data, updates = filled(shape, dtype, source), filled(index_shape, dtype, source)
    plan = elements_plan(shape, indices, axis, dtype, reduction)
    if indices.size and not size:
        assert [run(each, plan, data, indices, updates)[0] for each in every_kernel] == [0, 0]
        return
    expected = scatter_loops.scatter_elements(data, indices, updates, axis, reduction)
    for each in every_kernel:
        first, out = run(each, plan, data, indices, updates, threads)
        assert first == -1
        assert same(out, expected), (each.name, out, expected)


@for_each("reduction", REDUCTIONS)
@for_each("dtype", slow_but_for(("float16", "int8"), REDUCED))
def test_any_number_of_threads_gives_the_same_bits_where_updates_collide(
    kernel: Kernel, dtype: str, reduction: Reduction
) -> None:
    """Many blocks, with few targets for many updates; on one thread held against the loop."""
    source, numbers = random.Random(dtype), np.random.default_rng(3)
    shapes = ((40, 3), (1500, 1)), ((7, 9), (3000, 2)), ((1, 5, 70), (60, 2)), ((900,), (5000, 1)), ((1,), (700, 1))
    for shape, index_shape in shapes:
        sizes = shape[: index_shape[-1]]
        indices = np.stack([numbers.integers(-size, size, index_shape[0]) for size in sizes], -1)
        data = filled(shape, dtype, source)
        updates = filled((index_shape[0], *shape[index_shape[-1] :]), dtype, source)
        plan = nd_plan(shape, indices, dtype, reduction)
        check(kernel, plan, data, indices, updates, scatter_loops.scatter_nd(data, indices, updates, reduction))
        bad, wrong = source.sample(range(indices.size), 3), source.choice((2**62, -(2**62), *EXTREMES[:2]))
        check_bad(kernel, plan, data, indices, updates, bad, wrong)


@for_each("reduction", REDUCTIONS)
@for_each(
    ("shape", "index_shape", "axis"),
    [((30, 40), (30, 70), 1), ((30, 40), (110, 35), 0), ((12, 9, 5), (11, 30, 4), 1), ((2000,), (7000,), 0)],
)
@for_each("dtype", slow_but_for(("float16", "int8"), ("float32", "float16", "int8", "uint64")))
def test_elements_in_many_blocks_and_any_number_of_threads_give_the_same_bits(
    kernel: Kernel, shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int, dtype: str, reduction: Reduction
) -> None:
    source, numbers = random.Random(4), np.random.default_rng(5)
    indices = numbers.integers(-shape[axis], shape[axis], index_shape)
    data, updates = filled(shape, dtype, source), filled(index_shape, dtype, source)
    plan = elements_plan(shape, indices, axis, dtype, reduction)
    expected = scatter_loops.scatter_elements(data, indices, updates, axis, reduction)
    check(kernel, plan, data, indices, updates, expected)
    bad = source.sample(range(indices.size), 3)
    check_bad(kernel, plan, data, indices, updates, bad, (shape[axis], -shape[axis] - 1, 2**62))


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
    every = [*range(5), 254, 255, 256, 257, *range(count - 5, count)]
    for place in every if SOAK else (0, 3, 255, 256, count - 2, count - 1):
        indices = numbers.integers(0, size, (rows, count))
        indices[1, place] = -1
        plans: list[tuple[Plan, tuple[Array, Array, Array], Array]] = []
        given = data[1], indices[1].reshape(-1, 1), updates[1]
        expected = scatter_loops.scatter_nd(*given, reduction)
        plans.append((nd_plan((size,), given[1], dtype, reduction), given, expected))
        given = data, indices, updates
        if place in (0, 255, count - 1):
            expected = scatter_loops.scatter_elements(*given, 1, reduction)
            plans.append((elements_plan((rows, size), indices, 1, dtype, reduction), given, expected))
        for plan, given, expected in plans:
            check(numba_cpu, plan, *given, expected)
            last = given[1].size - 1
            at = place if last < count else count + place
            for wrong in (size, -size - 1, 2**63 - 1, -(2**63)):
                check_bad(numba_cpu, plan, *given, [at, last], (wrong, size))


@for_each("reduction", ["add", "mul"])
@for_each("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_becomes_of_two_nans_does_not_depend_on_where_they_come(
    always_shared: None, dtype: str, reduction: Reduction
) -> None:
    """Neither on the place in a block, nor on what is gone over together, nor on how many threads there are."""
    carrier = np.dtype(f"u{DTYPES[dtype].item_size}")
    quiet = int(np.array([np.nan], DTYPES[dtype].numpy).view(carrier)[0])
    found: set[int] = set()
    for tuples, size in ((1, 64), (7, 64), (1_031, 16 * 1_031)):
        data, updates = (
            np.full(items, quiet | mark, carrier).view(DTYPES[dtype].numpy) for items, mark in ((size, 1), (tuples, 2))
        )
        for step in (1, -1):  # numbers as they are given, and such as are to be moved first
            indices = np.arange(tuples).reshape(-1, 1) * step - (step < 0)
            plan = nd_plan((size,), indices, dtype, reduction)
            for threads in THREADS:
                out = run(numba_cpu, plan, data, indices, updates, threads)[1]
                found |= set(out[indices[:, 0]].view(carrier).tolist())
    assert len(found) == 1


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
        plan = nd_plan((len(data),), indices, dtype, reduction)
        check(numba_cpu, plan, data, indices, updates, scatter_loops.scatter_nd(data, indices, updates, reduction))


@for_each("reduction", ["min", "max"])
@for_each("dtype", ["float32", "float64"])
def test_the_least_or_greatest_of_many_for_one_place_is_found_whatever_is_there(
    compiled: None, dtype: str, reduction: Reduction
) -> None:
    """Of numbers among which is no NaN and no -0, before which the place may have either."""
    kind = DTYPES[dtype].numpy
    carrier = np.dtype(f"u{kind.itemsize}")
    nan = (np.array([np.nan], kind).view(carrier) | carrier.type(77)).view(kind)[0]
    is_foremost_zero = np.signbit if reduction == "min" else (lambda value: not np.signbit(value))
    for there in (-0.0, 0.0, nan, np.inf, -np.inf, 1.0, -1.0):
        for numbers in (
            *([0.0], [2.0, 0.0, 3.0], [-2.0, 0.0, -3.0], [-2.0, -3.0], [0.5, np.inf, 2.0], [-np.inf, -0.5]),
            *([0.0, *[-1.0] * 7], [0.0, *[1.0] * 7]),
        ):
            for count in (2, 7, 8, 9, 15, 16, 17, 100, 256, 300):
                updates = np.resize(np.array(numbers, kind), count)
                best = updates.min() if reduction == "min" else updates.max()
                wanted = kind.type(there)
                if best == wanted:
                    wanted = best if is_foremost_zero(best) else wanted
                elif (best < wanted) == (reduction == "min") and not np.isnan(wanted):
                    wanted = best
                data = np.full(64, there, kind)
                indices = np.full((count, 1), 5)
                plan = nd_plan((64,), indices, dtype, reduction)
                out = run(numba_cpu, plan, data, indices, updates, 1)[1]
                assert out.view(carrier)[5] == np.array([wanted], kind).view(carrier)[0], (there, numbers, count)


@for_each(("size", "tuples"), [((1,), 3), ((300,), 150), ((257,), 2000), ((40, 21), 420), ((3, 2, 50), 160)])
@for_each("width", [128, 129, 191, 200, 256, 1000, 5000])
def test_rows_written_once_are_those_of_the_last_update_or_of_data(
    always_shared: None, size: tuple[int, ...], tuples: int, width: int
) -> None:
    """Rows that no update names, one names and several name, in arrays that begin anywhere in a cache line."""
    numbers = np.random.default_rng((width, tuples))
    rows = prod(size)
    named = numbers.integers(0, max(1, rows * 3 // 4), tuples)
    indices = np.stack(np.unravel_index(named, size), -1)
    indices -= np.where(numbers.random(indices.shape) < 0.5, size, 0)
    plan = nd_plan((*size, width), indices, "uint8", "none")
    data, updates, out = (
        numbers.integers(0, 256, count * width + 64).astype(np.uint8)[start:][: count * width]
        for count, start in zip((rows, tuples, rows), numbers.integers(0, 64, 3), strict=True)
    )
    expected = data.copy().reshape(rows, width)
    for place, update in zip(named.tolist(), updates.reshape(tuples, width), strict=True):
        expected[place] = update
    further = {"updates": updates}
    for threads in THREADS:
        out[:] = 0
        assert numba_cpu.run(plan, data, indices.reshape(-1), out, threads, further=further) == -1
        assert out.tobytes() == expected.tobytes()
    for bad in ([0], [indices.size - 1], numbers.integers(0, indices.size, 3).tolist()):
        spoiled = indices.reshape(-1).copy()
        spoiled[bad] = numbers.choice((2**62, -(2**62), *EXTREMES[:2], max(size)))
        for threads in THREADS:
            assert numba_cpu.run(plan, data, spoiled, out, threads, further=further) == min(bad)


@for_each(("size", "tuples"), slow_but_for([((1,), 300), ((50, 4), 150)], [((1,), 300), ((140,), 90), ((50, 4), 150)]))
@for_each("reduction", slow_but_for(("add", "max"), ("add", "mul", "min", "max")))
@for_each(
    ("dtype", "items"),
    slow_but_for(
        [("float32", 4096), ("float16", 64), ("int8", 131)],
        [("float32", 33), ("float32", 4096), ("float16", 64), ("int8", 131), ("float64", 17)],
    ),
)
def test_rows_reduced_piece_by_piece_are_those_of_the_loop(
    always_shared: None,
    size: tuple[int, ...], tuples: int, reduction: Reduction, dtype: str, items: int,
) -> None:  # fmt: skip
    """Many updates of some rows and none of others, as one thread reduces them, in arrays that begin anywhere."""
    if items == 4096:
        size, tuples = (7,), 15
    numbers, rows = np.random.default_rng((items, tuples)), prod(size)
    named = np.concatenate([numbers.integers(0, rows, tuples - tuples // 3), np.full(tuples // 3, rows - 1)])
    indices = np.stack(np.unravel_index(numbers.permutation(named), size), -1)
    indices -= np.where(numbers.random(indices.shape) < 0.5, size, 0)
    plan = nd_plan((*size, items), indices, dtype, reduction)
    carrier, kind = DTYPES[dtype].carrier, DTYPES[dtype].numpy
    random_bits = filled((1_000,), dtype, random.Random(items))
    data, updates, out = (
        np.resize(random_bits, count * items + start)[start:].view(carrier).copy()
        for count, start in zip((rows, tuples, rows), (0, 333, 0), strict=True)
    )
    expected = scatter_loops.scatter_nd(
        data.view(kind).reshape(*size, items), indices, updates.view(kind).reshape(tuples, items), reduction
    )
    found = set()
    for threads in THREADS:
        out[:] = 0
        given = data, indices.reshape(-1), out
        assert numba_cpu.run(plan, *given, threads, further={"updates": updates}) == -1
        assert same(out.view(kind).reshape(expected.shape), expected)
        found.add(out.tobytes())
    assert len(found) == 1
    for bad in ([0], [indices.size - 1], numbers.integers(0, indices.size, 3).tolist()):
        spoiled = indices.reshape(-1).copy()
        spoiled[bad] = numbers.choice((2**62, -(2**62), *EXTREMES[:2], max(size)))
        for threads in THREADS:
            assert numba_cpu.run(plan, data, spoiled, out, threads, further={"updates": updates}) == min(bad)


@for_each("index_type", slow_but_for(("int64",), ("int64", "int16", "int32")))
@for_each(
    ("dtype", "reduction"),
    slow_but_for(
        [("complex128", "none"), ("float32", "add"), ("float16", "mul"), ("int8", "max")],
        [
            ("complex128", "none"),
            *((each, way) for each in ("float32", "float16", "int8", "uint64") for way in REDUCTIONS),
        ],
    ),
)
@for_each(
    ("size", "rows", "data_columns", "columns"),
    slow_but_for(
        [(9, 4, 1500, 1100), (9, 4, 600, 1), (3000, 2, 600, 150)],
        [
            (9, 4, 1500, 1500),
            (9, 4, 1500, 1100),
            (9, 4, 600, 1),
            (5, 11, 600, 300),
            (3000, 2, 600, 150),
            (3000, 2, 600, 600),
        ],
    ),
)
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
    plan = elements_plan((size, data_columns), indices, 0, dtype, reduction)
    expected = scatter_loops.scatter_elements(data, indices, updates, 0, reduction)
    check(numba_cpu, plan, data, indices, updates, expected)
    for bad in (source.sample(range(indices.size), 3), [columns - 1], [indices.size - 1, columns * (rows - 1)]):
        wrong = source.choice((size, -size - 1, 2**15 - 1))
        check_bad(numba_cpu, plan, data, indices, updates, bad, wrong)


def test_rows_longer_than_a_block_are_reduced(kernel: Kernel) -> None:
    numbers = np.random.default_rng(1)
    data, updates = (numbers.normal(size=(rows, 70_000)).astype(np.float32) for rows in (3, 4))
    indices = np.array([[1], [-1], [1], [0]])
    for reduction in REDUCTIONS:
        expected = data.copy()
        for (row,), update in zip(indices.tolist(), updates, strict=True):
            old = expected[row]
            expected[row] = {
                "none": update, "add": old + update, "mul": old * update,
                "min": np.minimum(old, update), "max": np.maximum(old, update),
            }[reduction]  # fmt: skip
        plan = nd_plan((3, 70_000), indices, "float32", reduction)
        for threads in THREADS if kernel.splits else (1,):
            assert run(kernel, plan, data, indices, updates, threads)[1].tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("reduction", ["add", "mul"])
def test_every_number_of_16_bits_is_rounded_as_numpy_does(kernel: Kernel, dtype: str, reduction: Reduction) -> None:
    """All of them with some partners each, among these the ones at which rounding or a range ends."""
    kind = DTYPES[dtype].numpy
    every = np.arange(1 << 16, dtype=np.uint16)
    partners = np.array([0, 1, 0x3FF, 0x400, 0x7BFF, 0x3C01, 0x0002, 0x8001, 0x7F7F, 0x3F81, 0x1234, 0xB5A5], np.uint16)
    for partner in partners:
        data, updates = every.view(kind), np.full(1 << 16, partner).view(kind)
        indices = np.arange(1 << 16).reshape(-1, 1)
        plan = nd_plan((1 << 16,), indices, dtype, reduction)
        with np.errstate(all="ignore"):
            expected = data + updates if reduction == "add" else data * updates
        assert same(run(kernel, plan, data, indices, updates)[1], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_nan_wins_the_first_one_and_zeros_have_an_order(kernel: Kernel, dtype: str) -> None:
    kind = DTYPES[dtype].numpy
    bits = np.dtype(f"u{kind.itemsize}")
    quiet = np.array([np.nan], kind).view(bits)[0]
    first, second = (np.array([quiet | bits.type(mark)], bits).view(kind)[0] for mark in (1, 2))
    data = np.array([first, 1.0, 0.0, -0.0, 1.0, 5.0], kind)
    indices = np.array([[0], [1], [1], [2], [3], [4], [4], [5]])
    updates = np.array([second, first, second, -0.0, 0.0, second, -7.0, 5.0], kind)
    for reduction, zeros in (("min", (-0.0, -0.0)), ("max", (0.0, 0.0))):
        expected = np.array([first, first, *zeros, second, 5.0], kind)
        plan = nd_plan((6,), indices, dtype, reduction)
        assert run(kernel, plan, data, indices, updates)[1].tobytes() == expected.tobytes()


ND = nd_plan((3, 4), np.zeros((2, 1), np.int64), "float32", "add")
ELEMENTS = elements_plan((3, 4), np.zeros((2, 4), np.int64), 0, "float32", "add")


def _good(plan: Plan) -> list[Any]:
    return [
        np.zeros(12, np.uint32), np.zeros(plan.index_items, np.int64), np.zeros(12, np.uint32), np.zeros(8, np.uint32)
    ]  # fmt: skip


def _run_arrays(kernel: Kernel, plan: Plan, arrays: list[Any]) -> int:
    data, indices, out, updates = arrays
    return kernel.run(plan, data, indices, out, further={"updates": updates})


def _read_only() -> Array:
    made = np.zeros(12, np.uint32)
    made.flags.writeable = False
    return made


WRONG: dict[str, tuple[int, Any]] = {
    "short data": (0, np.zeros(11, np.uint32)),
    "data of other items": (0, np.zeros(12, np.uint64)),
    "data of no carrier": (0, np.zeros(12, np.float32)),
    "none": (0, None),
    "short indices": (1, np.zeros(1, np.int64)),
    "long indices": (1, np.zeros(9, np.int64)),
    "indices of floats": (1, np.zeros(8)),
    "short output": (2, np.zeros(11, np.uint32)),
    "long output": (2, np.zeros(13, np.uint32)),
    "output that is read-only": (2, _read_only()),
    "short updates": (3, np.zeros(7, np.uint32)),
    "long updates": (3, np.zeros(9, np.uint32)),
    "updates of other items": (3, np.zeros(8, np.uint64)),
    "updates of no carrier": (3, np.zeros(8, np.float32)),
    "updates with gaps": (3, np.zeros(16, np.uint32)[::2]),
    "no updates": (3, None),
}


@for_each("name", WRONG)
@for_each("plan", [ND, ELEMENTS])
def test_other_arrays_are_refused_before_they_are_touched(kernel: Kernel, plan: Plan, name: str) -> None:
    arrays = _good(plan)
    assert _run_arrays(kernel, plan, arrays) == -1
    number, wrong = WRONG[name]
    arrays[number] = wrong
    with pytest.raises(TypeError):
        _run_arrays(kernel, plan, arrays)


CHANGES: list[tuple[Plan, dict[str, Any]]] = [
    (ND, {"tuples": 3}),
    (ND, {"tuples": -2}),
    (ND, {"dims": (4,)}),
    (ND, {"dims": (2**62, 2**62)}),
    (ND, {"slice_items": 5}),
    (ND, {"item_size": 8}),
    (ND, {"dtype": "float64"}),
    (ND, {"dtype": "float64", "item_size": 8}),
    (ND, {"dtype": "bool"}),
    (ND, {"reduction": "sub"}),
    (ELEMENTS, {"axis_size": 4}),
    (ELEMENTS, {"axis_stride": 5}),
    (ELEMENTS, {"strides": (0, 2)}),
    (ELEMENTS, {"strides": (2**62, 1)}),
    (ELEMENTS, {"axis_size": 2**62, "axis_stride": 2**62}),
    (ELEMENTS, {"sizes": (-2, -4)}),
    (ELEMENTS, {"sizes": (2**33, 2**31)}),
    (ELEMENTS, {"strides": (-1, 1)}),
    (ELEMENTS, {"data_items": 11}),
    (ELEMENTS, {"item_size": 8}),
    (ELEMENTS, {"dtype": "int64"}),
    (ELEMENTS, {"dtype": "complex64", "item_size": 8}),
]


@for_each(("plan", "change"), CHANGES)
def test_a_plan_that_does_not_fit_its_arrays_is_refused(kernel: Kernel, plan: Plan, change: dict[str, Any]) -> None:
    arrays = _good(plan)
    with pytest.raises((TypeError, OverflowError)):
        _run_arrays(kernel, replace(plan, **change), arrays)


def test_a_plan_whose_components_and_updates_are_beyond_int64_is_refused(kernel: Kernel) -> None:
    plan = ScatterNDPlan(2**62, (1, 1, 1, 1), 4, 1, True, "uint8", "none")
    empty = np.zeros(0, np.uint8)
    with pytest.raises((TypeError, OverflowError)):
        _run_arrays(kernel, plan, [np.zeros(4, np.uint8), np.zeros(0, np.int64), np.zeros(4, np.uint8), empty])

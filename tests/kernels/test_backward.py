"""Gradients of gathers on every kernel of the CPU, against a loop over elements and NumPy's own sums."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.kernels import Kernel
from app.kernels.reference import backward as backward_reference
from app.operators.backward_plan import FLOAT_TYPES, BackwardPlan, FloatType
from app.operators.gather_plan import GatherPlan
from app.tensors.dtypes import DTYPES
from tests.conftest import SOAK, samples, slow_but_for
from tests.for_each import for_each
from tests.http.server import run_program
from tests.kernels.cpu_kernels import always_shared, every_kernel, kernel
from tests.kernels.guarded_backward import ITEMS, unbuffered
from tests.kernels.reference import EXTREMES
from tests.traced_memory import peak_of

__all__ = ["always_shared", "every_kernel", "kernel"]

THREADS = (1, 2, 7)
Result = tuple[int, NDArray[Any], NDArray[np.int64] | None]


def run(
    kernel: Kernel, plan: BackwardPlan, grad_output: NDArray[Any], indices: NDArray[Any], threads: int = 1
) -> Result:
    """The first bad component, the result, and the places where the plan is sparse."""
    carrier = DTYPES[plan.float_type].carrier
    out = np.frombuffer(random.Random(1).randbytes(plan.output_items * plan.item_size), carrier).copy()
    further = {"scratch": np.full(plan.scratch_items, -7, np.int64)}
    if plan.sparse:
        further |= {"places": np.full(plan.rows, -7), "count": np.zeros(1, np.int64)}
    first = kernel.run(plan, grad_output.view(carrier), indices, out, threads, further=further)
    items = out.view(ITEMS[plan.float_type])
    if not plan.sparse:
        return first, items, None
    count = int(further["count"][0])
    return first, items[: count * plan.slice_items], further["places"][:count]


def same(got: Result, wanted: Result) -> bool:
    if got[0] >= 0 or wanted[0] >= 0:
        return got[0] == wanted[0]
    if (got[2] is None) != (wanted[2] is None):
        return False
    places = got[2] is None or (wanted[2] is not None and got[2].tolist() == wanted[2].tolist())
    return places and canonical(got[1]) == canonical(wanted[1])


def canonical(values: NDArray[Any]) -> bytes:
    """The bits, where each NaN of the reference is the one that results have."""
    fixed = values.copy()
    fixed[np.isnan(values)] = values.dtype.type("nan")
    return fixed.tobytes()


def values(source: np.random.Generator, count: int, float_type: str, hard: bool) -> NDArray[Any]:
    """Of sizes so different that another order makes other sums; `hard` ones with NaN, infinities and tiny ones."""
    spread = 4 if float_type == "float16" else 12
    numbers = source.standard_normal(count) * 2.0 ** source.integers(-spread, spread, count)
    if hard and count:
        odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 6e4, -6e4, 6e-8, 3e-5, 1e-40, 3e38, 1e-310]
        places = source.integers(0, count, max(count // 4, 1))
        with np.errstate(all="ignore"):
            numbers[places] = source.choice(odd, len(places))
    with np.errstate(all="ignore"):
        return numbers.astype(ITEMS[float_type])


@st.composite
def cases(draw: st.DrawFn) -> tuple[BackwardPlan, NDArray[Any], NDArray[np.int64]]:
    dims = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5, 17, 0)), min_size=1, max_size=3)))
    float_type = draw(st.sampled_from(FLOAT_TYPES))
    sparse = draw(st.booleans())
    batches = 1 if sparse else draw(st.sampled_from((1, 1, 2, 3, 0)))
    tuples, width = draw(st.sampled_from((0, 1, 2, 7, 40))), draw(st.sampled_from((1, 1, 2, 3, 9, 33, 0)))
    coefficient = draw(st.sampled_from((1.0, 1.0, -1.0, 0.5, 0.1, -0.0, 3e38, 1e-40)))
    broadcast, wrap = draw(st.booleans()), draw(st.booleans())
    item_size = ITEMS[float_type].itemsize
    gather = GatherPlan(batches, tuples, dims, width, item_size, broadcast, wrap)
    plan = BackwardPlan(gather, float_type, sparse, coefficient)
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    grad_output = values(chance, plan.data_items, float_type, draw(st.booleans()))
    sizes = np.tile(np.array(dims, np.int64), plan.index_tuples)
    indices = np.array([chance.integers(-s if wrap else 0, s) if s else 0 for s in sizes.tolist()], np.int64)
    if len(indices) and draw(st.sampled_from((True, False, False, False))):
        place = draw(st.integers(0, len(indices) - 1))
        size = dims[place % len(dims)]
        indices[place] = draw(st.sampled_from((size, -size - 1, -1, *EXTREMES)))
    return plan, grad_output, indices


@settings(max_examples=samples(1200), deadline=None)
@given(cases())
def test_each_slice_is_added_at_its_index_in_order(
    every_kernel: list[Kernel], case: tuple[BackwardPlan, NDArray[Any], NDArray[np.int64]]
) -> None:
    plan, grad_output, indices = case
    with np.errstate(all="ignore"):
        bad, sums, named = unbuffered(plan, grad_output, indices)
    wanted = bad, sums, named if plan.sparse else None
    for each in every_kernel:
        for threads in THREADS if each.splits else (1,):
            got = run(each, plan, grad_output, indices, threads)
            assert same(got, wanted), (each.name, threads, plan)


@for_each("float_type", slow_but_for(("float16",), FLOAT_TYPES))
@for_each("sparse", [False, True])
@for_each(
    ("batches", "tuples", "dims", "width", "broadcast"),
    [
        (1, 30_000, (20_000,), 5, False),
        (1, 50_000, (3,), 70, False),  # heavy collisions
        (1, 60_000, (1,), 1, False),
        (1, 20, (100_000,), 40, False),
        (1, 9_000, (70, 90, 2), 3, False),
        (1, 300, (5,), 700, False),
        (1, 200, (1,), 5_000, False),  # one heavy row, cut by columns in order
        (40, 2_000, (500,), 4, False),
        (3, 10_000, (700,), 9, True),
        (200, 600, (31,), 2, True),
    ],
)
def test_any_number_of_threads_and_every_kernel_give_the_bits_of_unbuffered_sums(
    every_kernel: list[Kernel],
    float_type: FloatType,
    sparse: bool,
    batches: int,
    tuples: int,
    dims: tuple[int, ...],
    width: int,
    broadcast: bool,
) -> None:
    if sparse and batches > 1:
        return
    chance = np.random.default_rng(tuples)
    item = ITEMS[float_type]
    plan = BackwardPlan(
        GatherPlan(batches, tuples, dims, width, item.itemsize, broadcast, True), float_type, sparse, -0.3
    )
    grad_output = values(chance, plan.data_items, float_type, hard=False)
    sizes = np.array(dims, np.int64)
    indices = chance.integers(-sizes, sizes, (plan.index_tuples, len(dims))).reshape(-1)
    _, wanted, named = unbuffered(plan, grad_output, indices)
    for each in every_kernel:
        for threads in (*THREADS, 16) if each.splits else (1,):
            first, out, places = run(each, plan, grad_output, indices, threads)
            assert first == -1
            assert out.tobytes() == wanted.tobytes(), (each.name, threads)
            assert places is None or places.tolist() == named.tolist()


def test_a_nan_has_no_bits_of_its_own(kernel: Kernel) -> None:
    nans = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0xFF800000, 0x7F800000], np.uint32).view(np.float32)
    plan = BackwardPlan(GatherPlan(1, 5, (4,), 1, 4, False, True), "float32", coefficient=-2.0)
    got = run(kernel, plan, nans, np.array([0, 1, 2, 3, 3]))[1]
    assert got.view(np.uint32).tolist() == [0x7FC00000] * 4


def run_between_others(
    plan: BackwardPlan,
    grad_output: NDArray[Any],
    indices: NDArray[Any],
    wanted: bytes,
    threads: int,
    before: int,
) -> None:
    """Run the compiled kernel into a result that is so many items behind the beginning of a cache line, between other
    items, which it does not touch.
    """
    carrier = DTYPES[plan.float_type].carrier
    room = np.full(plan.output_items + 160, 7, carrier)
    around = room[-room.ctypes.data % 64 // carrier.itemsize :][: plan.output_items + 96]
    out = around[before : before + plan.output_items]
    scratch = np.full(plan.scratch_items, -7)
    given = grad_output.view(carrier), indices, out, threads
    assert import_module("app.kernels.numba_cpu").run(plan, *given, further={"scratch": scratch}) == -1
    assert out.tobytes() == wanted, (threads, before)
    assert (around[:before] == 7).all()
    assert (around[before + plan.output_items :] == 7).all()


@for_each("hard", (False, True))
@for_each("float_type", slow_but_for(("float32",), ("float32", "float64")))
@for_each(
    ("batches", "tuples", "rows", "width"),
    [
        (1, 17_000, 3_000, 64),  # so many into so many that threads share the columns
        (1, 17_000, 300, 64),  # so many into few
        (1, 5_000, 17_000, 64),  # fewer into many
        (2, 5_000, 900, 128),
        (1, 35_000, 5_000, 32),
        (1, 900, 50, 20),
        (3, 300, 40, 33),
        (1, 300, 1_000, 64),
        (1, 300, 100, 17),
        (1, 300, 100, 65),
        (1, 300, 100, 129),
        (1, 60_000, 100, 18),  # rows of one cache line and a half
        (1, 1_000, 300_000, 4),  # so few that threads write the zeros that they add to
        (2, 60, 2_000, 64),
    ],
)
def test_rows_that_are_added_as_they_come(
    always_shared: None, batches: int, tuples: int, rows: int, width: int, float_type: FloatType, hard: bool
) -> None:
    """At every kind of alignment, where a NaN has no bits of its own, and not an item beside the result is written."""
    chance, item = np.random.default_rng(width), ITEMS[float_type]
    indices = chance.integers(-rows, rows, batches * tuples)
    plan = BackwardPlan(GatherPlan(batches, tuples, (rows,), width, item.itemsize, False, True), float_type)
    grad_output = values(chance, plan.data_items, float_type, hard)
    with np.errstate(all="ignore"):
        _, sums, _ = unbuffered(plan, grad_output, indices)
    wanted = canonical(sums)
    for threads in THREADS:
        for before in (0, 4, 5, 16):
            run_between_others(plan, grad_output, indices, wanted, threads, before)


@for_each("coefficient", (1.0, -0.5, 0.0))
@for_each("float_type", slow_but_for(("float32",), ("float32", "float64")))
@for_each("width", (1, 3))
def test_few_tuples_into_many_narrow_rows(
    every_kernel: list[Kernel], width: int, float_type: FloatType, coefficient: float
) -> None:
    """Several threads write the zeros between them."""
    item = ITEMS[float_type]
    for rows, chosen in ((70_000, [69_999, 5, -1, 0, 5]), (20_000, [7])):
        for batches in (1, 2):
            gather = GatherPlan(batches, len(chosen), (rows,), width, item.itemsize, False, True)
            plan = BackwardPlan(gather, float_type, coefficient=coefficient)
            grad_output = np.resize(np.array([1.5, -0.0, np.nan, -2.0, np.inf, 3.0, -np.inf], item), plan.data_items)
            indices = np.array(chosen * batches)
            with np.errstate(all="ignore"):
                wanted = canonical(unbuffered(plan, grad_output, indices)[1])
            for each in every_kernel:
                for threads in THREADS if each.splits else (1,):
                    first, out, _ = run(each, plan, grad_output, indices, threads)
                    assert first == -1
                    assert out.tobytes() == wanted, (each.name, threads)


def test_batches_that_share_sets_of_tuples_are_as_batches_with_their_own(kernel: Kernel) -> None:
    chance = np.random.default_rng(6)
    indices, each = chance.integers(-7, 7, (4, 30)), 3
    shared = BackwardPlan(GatherPlan(12, 30, (7,), 2, 4, False, True, batches_per_set=each), "float32")
    own = BackwardPlan(GatherPlan(12, 30, (7,), 2, 4, False, True), "float32")
    gradient = values(chance, own.data_items, "float32", hard=False)
    wanted = run(kernel, own, gradient, np.repeat(indices, each, axis=0).reshape(-1))
    flat = indices.reshape(-1)
    for threads in THREADS:
        assert same(run(kernel, shared, gradient, flat, threads), wanted)
    flat[77] = 7
    assert run(kernel, shared, gradient, flat)[0] == 77


def test_places_beyond_what_a_pair_can_hold(every_kernel: list[Kernel]) -> None:
    """A sparse gradient of a table with as many rows as int64 can count."""
    plan = BackwardPlan(GatherPlan(1, 5, (2**30, 2**30), 2, 4, False, True), "float32", sparse=True)
    grad_output = np.arange(10, dtype=np.float32)
    indices = np.array([2**30 - 1, -1, 0, 0, 7, 5, -1, -1, -(2**30), 0])
    for each in every_kernel:
        first, out, places = run(each, plan, grad_output, indices)
        assert first == -1
        assert places is not None
        assert places.tolist() == [0, 7 * 2**30 + 5, 2**60 - 1]
        assert out.tolist() == [10.0, 12.0, 4.0, 5.0, 6.0, 8.0]
    wider = replace(plan, gather=replace(plan.gather, dims=(2**31, 2**31)))
    for each in every_kernel:
        assert run(each, wider, grad_output, indices)[0] == -1


@pytest.mark.parametrize(("name", "cases"), [("app.kernels.numba_cpu", 12_000), ("app.kernels.reference", 4_000)])
def test_nothing_is_touched_beyond_the_arrays(name: str, cases: int, compiled: Path) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.kernels.guarded_backward", name]
    command += [str(samples(cases)), str(random.SystemRandom().getrandbits(32) if SOAK else 20_261_123)]
    command += [str(compiled)] if name == "app.kernels.numba_cpu" else []
    done = run_program(command, timeout=3000, compiled=compiled)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("rows", "sparse"),
    slow_but_for(
        [(1000, False)],
        # The last one times the number of tuples is beyond int64.
        [(1000, False), (1000, True), (1 << 20, False), (1 << 20, True), (1 << 44, True)],
    ),
)
def test_numpy_takes_no_more_memory_for_a_tuple_than_is_charged(rows: int, sparse: bool) -> None:
    chance, tuples = np.random.default_rng(5), 1 << 21
    plan = BackwardPlan(GatherPlan(1, tuples, (rows,), 1, 8, False, True), "float64", sparse)
    indices = chance.integers(-rows, rows, tuples)
    indices[::3] = chance.integers(0, 50, len(indices[::3]))
    grad_output, out = chance.random(tuples).view(np.uint64), np.zeros(plan.output_items, np.uint64)
    further = {"scratch": np.zeros(plan.scratch_items, np.int64)}
    if sparse:
        further |= {"places": np.zeros(plan.rows, np.int64), "count": np.zeros(1, np.int64)}
    peak = peak_of(lambda: backward_reference.run(plan, grad_output, indices, out, **further))
    blocks = 16 << 20  # of sums and of tuples, however many there are
    assert peak < blocks + plan.scratch_bytes - further["scratch"].nbytes
    named, group = np.unique(indices % rows, return_inverse=True)
    sums = np.zeros(len(named))
    np.add.at(sums, group, grad_output.view(np.float64))
    if sparse:
        count = int(further["count"][0])
        assert np.array_equal(further["places"][:count], named)
        assert np.array_equal(out[:count].view(np.float64), sums)
    else:
        assert np.array_equal(out.view(np.float64)[named], sums)

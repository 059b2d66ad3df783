"""Whatever a kernel is handed, it compares it with the plan before it touches it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.kernels import Kernel
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.tensors.dtypes import INTEGERS
from tests.conftest import SOAK
from tests.for_each import for_each
from tests.kernels.cpu_kernels import every_kernel
from tests.kernels.reference import Case, check, make_case, random_plan
from tests.kernels.test_guarded import ALL, NUMBA, guarded, said

__all__ = ["every_kernel"]

AnyPlan = GatherPlan | GatherElementsPlan | ScatterNDPlan | ScatterElementsPlan | BackwardPlan
GATHER = GatherPlan(1, 4, (3,), 2, 4, False, True)
ELEMENTS = GatherElementsPlan((2, 4), (0, 1), 3, 4, 12, 4, True)
SCATTER = ScatterNDPlan(2, (3,), 4, 4, True, "float32", "add")
SCATTER_ELEMENTS = ScatterElementsPlan((2, 4), (0, 1), 3, 4, 12, 4, True, "float32", "add")
GRADIENT = BackwardPlan(GATHER, "float32")
PLANS: dict[str, AnyPlan] = {
    "gather": GATHER,
    "fill": GATHER,
    "elements": ELEMENTS,
    "scatter": SCATTER,
    "scatter elements": SCATTER_ELEMENTS,
    "gradient": GRADIENT,
    "sparse gradient": replace(GRADIENT, sparse=True),
}
INT64 = ("replaced", "scratch", "places", "count")
"""Further arrays that are no carriers, and that kernels write to."""


def arrays_for(name: str) -> dict[str, Any]:
    """Good arrays for a plan of PLANS, by their roles."""
    plan = PLANS[name]
    made: dict[str, Any] = {
        "data": np.ones(plan.data_items, np.uint32),
        "indices": np.zeros(plan.index_items, np.int64),
        "out": np.full(plan.output_items, 7, np.uint32),
    }
    if name == "fill":
        made |= {"fill": np.zeros(2, np.uint32), "replaced": np.zeros(1, np.int64)}
    if isinstance(plan, ScatterNDPlan | ScatterElementsPlan):
        made["updates"] = np.ones(8, np.uint32)
    if isinstance(plan, BackwardPlan):
        made["scratch"] = np.zeros(plan.scratch_items, np.int64)
        if plan.sparse:
            made |= {"places": np.zeros(3, np.int64), "count": np.zeros(1, np.int64)}
    return made


def run(kernel: Kernel, plan: Any, arrays: dict[str, Any]) -> int:
    further = {role: array for role, array in arrays.items() if role not in ("data", "indices", "out")}
    given: Any = {"further": further} if further else {}
    return kernel.run(plan, arrays["data"], arrays["indices"], arrays["out"], **given)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


ANY = ("data", "indices", "out", "fill", "updates", *INT64)
CARRIERS = ("data", "out", "fill", "updates")
SPOILED: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "one item too few": (ANY, lambda array: array[:-1]),
    "one item too many": (tuple(role for role in ANY if role != "scratch"), lambda array: np.append(array, array[0])),
    "two axes": (ANY, lambda array: array.reshape(-1, 1)),
    "nothing": (ANY, lambda array: None),
    "a list": (ANY, lambda array: array.tolist()),
    "a subclass": (ANY, lambda array: array.view(np.ma.MaskedArray)),
    "objects": (ANY, lambda array: array.astype(object)),
    "big endian": (ANY, lambda array: array.astype(array.dtype.newbyteorder(">"))),
    "gaps": ((*CARRIERS, "indices"), lambda array: np.repeat(array, 2)[::2]),
    "backwards": ((*CARRIERS, "indices"), lambda array: array[::-1]),
    "twice the item size": (CARRIERS, lambda array: array.astype(np.uint64)),
    "half the item size and all the bytes": (CARRIERS, lambda array: array.view(np.uint16)),
    "floats, no carriers": (CARRIERS, lambda array: array.view(np.float32)),
    "floats": (("indices",), lambda array: array.astype(np.float64)),
    "bools": (("indices",), lambda array: array.astype(bool)),
    "not aligned": (("indices",), lambda array: np.zeros(8 * len(array) + 1, np.uint8)[1:].view(np.int64)),
    "unsigned": (INT64, lambda array: array.view(np.uint64)),
    "read-only": (("out", *INT64), read_only),
}


def is_refused(kernel: Kernel, plan: Any, arrays: dict[str, Any], *further: type[Exception]) -> None:
    with pytest.raises((TypeError, *further)):
        run(kernel, plan, arrays)


def spoil(kernel: Kernel, name: str) -> None:
    """Every array of the plan is refused in each way of being another one."""
    assert run(kernel, PLANS[name], arrays_for(name)) == -1
    for how, (roles, change) in SPOILED.items():
        for role in roles:
            arrays = arrays_for(name)
            if role in arrays:
                arrays[role] = change(arrays[role])
                out = arrays["out"]
                try:
                    is_refused(kernel, PLANS[name], arrays)
                except BaseException as error:
                    error.add_note(f"{kernel.name}, {name}: {role} with {how}")
                    raise
                if role != "out":
                    assert (out == 7).all(), f"{role} with {how}: the output was touched"


def test_an_array_of_another_kind_than_the_plan_of_a_gather_says_is_refused(kernel: Any) -> None:
    spoil(kernel, "gather")


@for_each("name", [name for name in PLANS if name != "gather"])
def test_an_array_of_another_kind_than_the_plan_says_is_refused(every_kernel: list[Kernel], name: str) -> None:
    for kernel in every_kernel:
        spoil(kernel, name)


BIG = 2**32
IMPOSSIBLE = {
    "a product that wraps to nothing": (GatherPlan(1, 1, (BIG, BIG), 1, 4, False, True), 0, 2, 1),
    "a product that wraps to what is there": (GatherPlan(1, 1, (BIG, BIG + 1), BIG + 4, 4, False, True), 4, 2, 1),
    "an output that wraps": (GatherPlan(2**62, 4, (1,), 1, 4, True, True), 0, 4, 0),
    "indices that wrap": (GatherPlan(2**62, 4, (1,), 0, 4, False, True), 0, 0, 0),
    "a negative slice": (GatherPlan(1, 1, (2,), -1, 4, False, True), 2, 1, 1),
    "two negative sizes": (GatherPlan(-1, 1, (2,), -1, 4, False, True), 2, 1, 1),
    "a negative axis": (GatherPlan(1, 1, (-2,), 1, 4, False, True), 2, 1, 1),
    "tuples of no components": (GatherPlan(1, 1, (), 1, 4, False, True), 2, 0, 1),
    "sets that do not make the batches": (GatherPlan(4, 2, (3,), 1, 4, False, True, 3), 12, 4, 8),
    "sets of a negative size": (GatherPlan(4, 2, (3,), 1, 4, False, True, -1), 12, 8, 8),
}


@for_each("name", IMPOSSIBLE)
def test_a_gather_of_sizes_that_no_array_has_is_refused(kernel: Any, name: str) -> None:
    plan, data, indices, out = IMPOSSIBLE[name]
    with pytest.raises((TypeError, ValueError)):
        kernel.run(plan, np.zeros(data, np.uint32), np.zeros(indices, np.int64), np.zeros(out, np.uint32))


CHANGES: dict[str, list[dict[str, Any]]] = {
    "elements": [
        {"axis_size": 4}, {"axis_stride": 5}, {"strides": (0, 2)}, {"strides": (2**62, 1)}, {"strides": (-1, 1)},
        {"axis_size": 2**62, "axis_stride": 2**62}, {"axis_size": 2**63 - 1, "axis_stride": 1}, {"axis_size": -3},
        {"axis_stride": -4}, {"sizes": (8,), "strides": (2,)}, {"sizes": (-2, -4)}, {"sizes": (2**33, 2**31)},
        {"data_items": 11}, {"item_size": 8},
    ],
    "scatter": [
        {"tuples": 3}, {"tuples": -2}, {"dims": (4,)}, {"dims": (2**62, 2**62)}, {"slice_items": 5}, {"item_size": 8},
        {"dtype": "float64"}, {"dtype": "float64", "item_size": 8}, {"dtype": "bool"}, {"reduction": "sub"},
    ],
    "scatter elements": [
        {"axis_size": 4}, {"axis_stride": 5}, {"strides": (0, 2)}, {"strides": (2**62, 1)}, {"strides": (-1, 1)},
        {"axis_size": 2**62, "axis_stride": 2**62}, {"sizes": (-2, -4)}, {"sizes": (2**33, 2**31)}, {"data_items": 11},
        {"item_size": 8}, {"dtype": "int64"}, {"dtype": "complex64", "item_size": 8},
    ],
    "gradient": [
        {"batches": -1}, {"batches": 2}, {"tuples": -4}, {"tuples": 2**62}, {"dims": (-3,)}, {"dims": (4,)},
        {"dims": (2**62, 2**62)}, {"slice_items": -2}, {"slice_items": 2**61}, {"item_size": 8},
        {"batches": 3, "batches_per_set": 2}, {"float_type": "float64"}, {"float_type": "int32"},
        {"float_type": "float16"},
    ],
    "sparse gradient": [{"batches": 2}, {"tuples": 2**62}, {"dims": (2,)}, {"slice_items": 2**61}],
    "fill": [{"broadcast_indices": True, "batches": 2}, {"batches": 4, "batches_per_set": 2}],
}  # fmt: skip


@for_each("name", CHANGES)
def test_a_plan_that_does_not_fit_its_arrays_is_refused(every_kernel: list[Kernel], name: str) -> None:
    plan: Any = PLANS[name]
    within = {each.name for each in fields(GatherPlan)} if isinstance(plan, BackwardPlan) else set()
    for change in CHANGES[name]:
        inner = {key: value for key, value in change.items() if key in within}
        changed = replace(plan, gather=replace(plan.gather, **inner)) if inner else replace(plan, **change)
        for kernel in every_kernel:
            is_refused(kernel, changed, arrays_for(name), OverflowError)


def test_a_scatter_whose_components_and_updates_are_beyond_int64_is_refused(every_kernel: list[Kernel]) -> None:
    plan = ScatterNDPlan(2**62, (1, 1, 1, 1), 4, 1, True, "uint8", "none")
    four, empty = np.zeros(4, np.uint8), np.zeros(0, np.uint8)
    arrays = {"data": four, "indices": np.zeros(0, np.int64), "out": four.copy(), "updates": empty}
    for kernel in every_kernel:
        is_refused(kernel, plan, arrays, OverflowError)


def test_a_plan_that_no_kernel_knows_is_refused(every_kernel: list[Kernel]) -> None:
    for kernel in every_kernel:
        is_refused(kernel, object(), arrays_for("gather"))


def test_arrays_that_are_too_short_for_their_plan_are_refused_before_they_are_touched(compiled: Path) -> None:
    run = guarded(NUMBA, ALL, compiled, "short", "1")
    assert run.returncode == 0, said(run)


def narrow(case: Case, dtype: str, source: random.Random) -> Case:
    """The case with indices of another type; where its values do not fit, others that are good."""
    info = np.iinfo(dtype)
    values = [value if info.min <= value <= info.max else 0 for value in case.indices.tolist()]
    if not case.plan.wrap and values and source.random() < 0.3:
        values[source.randrange(len(values))] = int(source.choice((info.min, info.max)))
    return Case(case.plan, case.data, np.array(values, dtype))


@for_each("dtype", INTEGERS)
def test_indices_of_every_integer_type_give_what_the_reference_gives(kernel: Any, dtype: str) -> None:
    source = random.Random(dtype)
    for number in range(300 if SOAK else 60):
        check(kernel, narrow(make_case(random_plan(source), source, spoiled=number % 2), dtype, source))


def test_a_uint64_beyond_int64_is_out_of_bounds_whether_negative_indices_wrap_or_not(kernel: Any) -> None:
    if kernel.name in ("cupy", "emulated"):
        pytest.skip("no dialect has both: the device takes such indices for negative ones")
    for wrap in (True, False):
        plan = GatherPlan(1, 3, (5,), 1, 4, False, wrap)
        indices = np.array([0, 2**64 - 1, 4], np.uint64)
        assert kernel.run(plan, np.zeros(5, np.uint32), indices, np.zeros(3, np.uint32)) == 1

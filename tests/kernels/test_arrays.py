"""Whatever a kernel is handed, it compares it with the plan before it touches it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.operators.gather_plan import GatherPlan
from app.tensors.dtypes import INTEGERS
from tests.conftest import SOAK, slow_but_for
from tests.for_each import for_each
from tests.kernels.guarded import PLANS
from tests.kernels.reference import Case, check, make_case, random_plan
from tests.kernels.test_guarded import ALL, NUMBA, NUMPY, guarded, said

PLAN = GatherPlan(1, 2, (2,), 1, 4, False, True)
DATA, INDICES, OUTPUT = range(3)


def arrays() -> list[Any]:
    return [np.array([7, 8], np.uint32), np.array([1, 0]), np.zeros(2, np.uint32)]


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


SPOILED: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "one item too few": ((DATA, INDICES, OUTPUT), lambda array: array[:1]),
    "one item too many": ((DATA, INDICES, OUTPUT), lambda array: np.append(array, array[0])),
    "no items": ((DATA, INDICES, OUTPUT), lambda array: array[:0]),
    "half the item size": ((DATA, OUTPUT), lambda array: array.view(f"u{array.itemsize // 2}")[:2]),
    "half the item size and all the bytes": ((DATA, OUTPUT), lambda array: array.view(f"u{array.itemsize // 2}")),
    "twice the item size": ((DATA, OUTPUT), lambda array: array.astype(np.uint64)),
    "two axes": ((DATA, INDICES, OUTPUT), lambda array: array.reshape(-1, 1)),
    "no axis": ((DATA, INDICES, OUTPUT), lambda array: array[0].reshape(())),
    "gaps": ((DATA, INDICES, OUTPUT), lambda array: np.repeat(array, 2)[::2]),
    "backwards": ((DATA, INDICES, OUTPUT), lambda array: array[::-1]),
    "one item again and again": ((DATA, INDICES, OUTPUT), lambda array: np.broadcast_to(array[:1], 2)),
    "big endian": ((DATA, INDICES, OUTPUT), lambda array: array.astype(array.dtype.newbyteorder(">"))),
    "floats": ((INDICES,), lambda array: array.astype(np.float64)),
    "floats, no carriers": ((DATA, OUTPUT), lambda array: array.view(np.float32)),
    "complex numbers": ((INDICES,), lambda array: array.astype(np.complex64)),
    "bools": ((INDICES,), lambda array: array.astype(bool)),
    "dates": ((INDICES,), lambda array: array.astype("M8[s]")),
    "objects": ((DATA, INDICES, OUTPUT), lambda array: array.astype(object)),
    "records": ((DATA, INDICES, OUTPUT), lambda array: array.view([("a", array.dtype)])),
    "not aligned": ((INDICES,), lambda array: np.zeros(17, np.uint8)[1:].view(np.int64)),
    "read-only": ((OUTPUT,), read_only),
    "a memoryview": ((DATA, INDICES, OUTPUT), memoryview),
    "bytes": ((DATA, INDICES, OUTPUT), lambda array: array.tobytes()),
    "a list": ((DATA, INDICES, OUTPUT), lambda array: array.tolist()),
    "a subclass": ((DATA, INDICES, OUTPUT), lambda array: array.view(np.ma.MaskedArray)),
    "nothing": ((DATA, INDICES, OUTPUT), lambda array: None),
}


@for_each(
    ("which", "how"), [pytest.param(at, how, id=f"{how} {at}") for how, (ats, _) in SPOILED.items() for at in ats]
)
def test_an_array_of_another_kind_than_the_plan_says_is_refused(kernel: Any, which: int, how: str) -> None:
    given = arrays()
    assert kernel.run(PLAN, *given) == -1
    assert given[OUTPUT].tolist() == [8, 7]
    given = arrays()
    given[which] = SPOILED[how][1](given[which])
    with pytest.raises(TypeError):
        kernel.run(PLAN, *given)


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
}


@for_each("name", IMPOSSIBLE)
def test_a_plan_of_sizes_that_no_array_has_is_refused(kernel: Any, name: str) -> None:
    plan, data, indices, out = IMPOSSIBLE[name]
    with pytest.raises((TypeError, ValueError)):
        kernel.run(plan, np.zeros(data, np.uint32), np.zeros(indices, np.int64), np.zeros(out, np.uint32))


@pytest.mark.parametrize(
    ("kernel_name", "plans"),
    slow_but_for([(NUMBA, ALL)], [(NUMBA, ALL), *((name, plans) for name in (NUMBA, NUMPY) for plans in PLANS)]),
)
def test_arrays_that_are_too_short_for_their_plan_are_refused_before_they_are_touched(
    kernel_name: str, plans: str, compiled: Path
) -> None:
    run = guarded(kernel_name, plans, compiled, "short", "1")
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

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.dispatch.pool import Pool
from app.dispatch.split import first_bad, run_split, split_plan
from app.errors import GatherError
from app.kernels import numba_cpu, numpy_cpu
from app.spec.plan import GatherPlan
from tests.kernels.reference import Case, gather, make_case


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    if not numba_cpu.ready():
        numba_cpu.configure(Path(tmp_path_factory.mktemp("compiled")))
    numba_cpu.warm()
    return [numpy_cpu, numba_cpu]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    plan = GatherPlan(
        draw(st.integers(0, 20)),
        draw(st.integers(0, 20)),
        tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))),
        draw(st.integers(0, 5)),
        draw(st.sampled_from((1, 2, 4, 8, 16))),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    return make_case(plan, random.Random(draw(st.integers(0, 2**32))), draw(st.integers(0, 3)))


@given(case=cases(), parts=st.integers(1, 9))
@settings(max_examples=6 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_parts_together_give_what_the_whole_gives(kernels: list[Any], case: Case, parts: int) -> None:
    expected, bad = gather(case.plan, case.data.tobytes(), case.indices.tolist())
    for kernel in kernels:
        out = case.out()
        pieces = split_plan(case.plan, case.data, case.indices, out, parts)
        for piece in pieces:
            assert piece.data.size == piece.plan.data_items
            assert piece.indices.size == piece.plan.index_items
            assert piece.out.size == piece.plan.output_items
        found = [kernel.run(*piece[:4]) for piece in pieces]
        assert first_bad(pieces, found) == bad
        if bad < 0:
            assert out.tobytes() == expected


@given(case=cases(), parts=st.integers(1, 9))
def test_parts_write_every_item_once(case: Case, parts: int) -> None:
    out = np.zeros(case.plan.output_items, np.uint8)
    for piece in split_plan(case.plan, case.data, case.indices, out, parts):
        piece.out[:] += 1
    assert (out == 1).all()


@pytest.mark.parametrize(("batches", "pieces"), [(1, 4), (2, 16), (3, 18), (4, 4), (5, 20), (16, 4), (17, 4)])
@pytest.mark.parametrize("shared", [True, False])
def test_batches_are_kept_whole_where_there_are_enough_of_them(batches: int, pieces: int, shared: bool) -> None:
    case = make_case(GatherPlan(batches, 100, (3,), 1, 4, shared, True), random.Random(1))
    assert len(split_plan(case.plan, case.data, case.indices, case.out(), 4)) == pieces


@pytest.mark.parametrize("spoiled", [0, 5])
@pytest.mark.parametrize("shared", [True, False])
def test_a_split_over_threads_gives_what_the_whole_gives(kernels: list[Any], spoiled: int, shared: bool) -> None:
    case = make_case(GatherPlan(3, 30_000, (7, 11), 1, 8, shared, True), random.Random(spoiled), spoiled)
    whole = case.out()
    bad = numpy_cpu.run(case.plan, case.data, case.indices, whole)
    assert (bad < 0) == (spoiled == 0)
    for kernel in kernels:
        pool = Pool(3, 1)
        out = case.out()
        began: list[int] = []
        run = partial(run_split, pool, kernel, case.plan, case.data, case.indices, out, 3, lambda: began.append(1))  # noqa: B023
        assert asyncio.run(run()) == bad
        assert began == [1]
        assert bad >= 0 or (out == whole).all()
        pool.close()


def test_a_start_that_refuses_refuses_the_whole(kernels: list[Any]) -> None:
    def late() -> None:
        raise GatherError("deadline_exceeded", "too late")

    case = make_case(GatherPlan(1, 60_000, (7,), 1, 8, False, True), random.Random(1))
    pool = Pool(2, 1)
    with pytest.raises(GatherError, match="deadline_exceeded"):
        asyncio.run(run_split(pool, kernels[0], case.plan, case.data, case.indices, case.out(), 2, late))
    pool.close()

"""Where the service runs a gather, and that every route gives the same."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import Unfinished, reference
from app.memory.budget import Budget, MemoryReservation
from app.operators.gather_plan import Plan
from app.services.service import Service
from app.store import Store
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Answer, Call
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.served import served

Array = NDArray[Any]
ROWS = 100_000
TABLE = np.arange(ROWS * 64, dtype=np.float32)
RANDOM = np.random.default_rng(1).integers(0, ROWS, 5_000)


def service(budget: int = 2**30, **chooser: Any) -> Service:
    return Service(
        Limits(), Store(), reference, RequestThreadPool(2, 8), BackendChooser(threads=2, **chooser), Budget(budget)
    )


def call(rows: NDArray[Any], **options: Any) -> Call:
    data = Tensor(DTYPES["float32"], (ROWS, 64), TABLE)
    name = rows.dtype.name
    return Call(
        "gathernd", data, Tensor(DTYPES[name], (len(rows), 1), rows), (0,), options.pop("dialect", "onnx-13"), **options
    )


def gather(made: Service, asked: Call) -> tuple[Answer, ServedRequest]:
    request = served(made.budget)
    try:
        return asyncio.run(made.run(asked, request)), request
    finally:
        made.pool.close()


@pytest.mark.parametrize("route", ["loop", "thread", "split"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_every_route_gives_the_same(route: Any, dtype: Any) -> None:
    asked = call(RANDOM.astype(dtype), dialect="openvino-8")
    answer, request = gather(service(force_route=route), asked)
    assert request.route == route
    assert request.parts == (2 if route == "split" else 1)
    assert (answer.output.array.reshape(-1, 64) == TABLE.reshape(-1, 64)[RANDOM]).all()
    wrong = RANDOM.astype(dtype)
    wrong[4_000] = ROWS
    with pytest.raises(GatherError, match="index_out_of_bounds") as caught:
        gather(service(force_route=route), call(wrong, dialect="openvino-8"))
    assert caught.value.places[0].position == (4_000, 0)


class _Late:
    """The kernel with a helper that gives back its part when it is told to, and not before."""

    name = "late"
    splits = True

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.back = threading.Event()

    def run(
        self,
        plan: Plan,
        data: Array,
        indices: Array,
        out: Array,
        threads: int = 1,
        may_leave_unfinished: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> int:
        def finish() -> int:
            assert self.back.wait(60)
            return reference.run(plan, data, indices, out)

        self.callers.append(threading.current_thread().name)
        if not may_leave_unfinished:
            return finish() if threads > 1 else reference.run(plan, data, indices, out)
        left = Unfinished()
        left.wait = finish  # type: ignore[method-assign]
        raise left


@pytest.mark.parametrize("bad", [False, True])
def test_the_event_loop_goes_on_while_a_helper_has_not_given_back_its_part(bad: bool) -> None:
    made = service(force_route="split", loop_max_us=1e9)
    made.kernel = kernel = _Late()
    rows = RANDOM.copy()
    if bad:
        rows[7] = ROWS

    async def main() -> Answer:
        waiting = asyncio.ensure_future(made.run(call(rows), served(made.budget)))
        await asyncio.sleep(0)
        made.chooser = replace(made.chooser, force_route="loop")
        answer = await made.run(call(RANDOM[:9]), served(made.budget))
        assert (answer.output.array.reshape(-1, 64) == TABLE.reshape(-1, 64)[RANDOM[:9]]).all()
        assert not waiting.done()
        kernel.back.set()
        return await waiting

    try:
        if bad:
            with pytest.raises(GatherError, match="index_out_of_bounds"):
                asyncio.run(main())
        else:
            answer = asyncio.run(main())
            assert (answer.output.array.reshape(-1, 64) == TABLE.reshape(-1, 64)[RANDOM]).all()
        assert kernel.callers == ["MainThread", "MainThread"]
    finally:
        kernel.back.set()
        made.pool.close()


class _Seven:
    """The fill value 7."""

    pointer = "/fill_value"

    def item(self, dtype: DType) -> Tensor:
        return Tensor(dtype, (1,), np.full(1, 7, dtype.numpy))


def test_no_slice_to_fill_with_is_made_where_there_are_no_tuples() -> None:
    items = 1 << 40
    data = Tensor(DTYPES["float32"], (0, items), np.empty(0, np.float32))
    rows = Tensor(DTYPES["int64"], (0, 1), np.empty(0, np.int64))
    asked = Call("gathernd", data, rows, (0,), "onnx-13", out_of_bounds="fill", fill_value=_Seven())
    answer, _ = gather(service(budget=2**20), asked)
    assert answer.output.shape == (0, items)
    assert answer.replaced == 0


def test_an_explanation_allocates_nothing_and_refuses_what_could_never_fit() -> None:
    made = service(budget=1 << 20)
    reservation = MemoryReservation(made.budget)
    with pytest.raises(GatherError, match="payload_too_large"):
        made.explain(call(RANDOM), reservation)
    assert made.explain(call(RANDOM[:100]), reservation).outputs["output"][1] == (100, 64)
    assert made.budget.used == made.budget.small_used == 0

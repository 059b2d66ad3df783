"""Where a gather runs is decided in one place: an explanation says what then happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.dispatch.choose_backend import TYPICAL, BackendChooser, Size
from app.dispatch.gpu_gathers import Gpu
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget, MemoryReservation
from app.services.service import Service
from app.store import Resident, Store
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call, Device
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.dispatch.fake_device import FakeDevice
from tests.served import served
from tests.strings import packed

T = TypeVar("T")


class OneTensor(Store):
    """A store with one tensor, whatever the name."""

    def __init__(self, tensor: Tensor, cold: bool) -> None:
        self.resident = Resident(tensor, '"1-0"', cold=cold)

    def get(self, reference: str) -> Resident:
        return self.resident


class Situation(NamedTuple):
    """A service in one state, and what is asked of it."""

    strings: bool
    table: tuple[int, int]
    named: bool
    cold: bool
    gpu: bool
    always: bool
    asked: Device
    memory: int
    slow: float
    gpu_from: Size
    limits: tuple[float | None, float | None]
    force: Any
    picked: int

    def service(self, tensor: Tensor) -> Service:
        rates = replace(TYPICAL, far_item_s=self.slow * TYPICAL.far_item_s, byte_s=self.slow * TYPICAL.byte_s)
        chooser = BackendChooser(2, *self.limits, force_route=self.force, rates=rates)
        store = OneTensor(tensor, self.cold and self.named)
        made = Service(Limits(), store, reference, RequestThreadPool(2, 8), chooser, Budget(1 << 30))
        if self.gpu:
            made.use_gpu(Gpu(FakeDevice(self.memory), self.gpu_from, 10), always=self.always)
        return made


SITUATIONS = st.builds(
    Situation,
    strings=st.sampled_from((False,) * 7 + (True,)),
    table=st.sampled_from(((3000, 16), (3000, 16), (1, 1), (40_000, 1), (300, 1000))),
    named=st.booleans(),
    cold=st.booleans(),
    gpu=st.booleans(),
    always=st.booleans(),
    asked=st.sampled_from(("auto", "auto", "cpu", "gpu")),
    memory=st.sampled_from((1 << 10, 1 << 18, 1 << 30)),
    slow=st.sampled_from((1.0, 30.0, 3000.0)),
    gpu_from=st.sampled_from((Size(1, 1), Size(100, 1 << 12), Size(1e9, 1e9))),
    limits=st.tuples(st.sampled_from((None, 0.0, 50.0)), st.sampled_from((None, 0.0, 1e4))),
    force=st.sampled_from((None, None, None, "loop", "thread", "split")),
    picked=st.sampled_from((1, 40, 900)),
)


async def result(work: Callable[[], Awaitable[T]]) -> tuple[T | None, str | None]:
    """What comes of it, or the code of the error."""
    try:
        return await work(), None
    except GatherError as error:
        return None, error.code


async def explained_and_taken(situation: Situation) -> tuple[str, bool] | None:
    """The route that is said and taken, and whether there is a GPU; None where both are refused."""
    rows, width = situation.table
    array = np.arange(rows * width, dtype=np.float32)
    tensor = packed(["text"] * rows) if situation.strings else Tensor(DTYPES["float32"], (rows, width), array)
    service = situation.service(tensor)
    indices = Tensor(DTYPES["int64"], (situation.picked, 1), np.arange(situation.picked) % rows)
    data = "table" if situation.named and not situation.strings else tensor
    call, request = Call("gathernd", data, indices, (0,), "onnx-13", situation.asked), served(service.budget)
    try:
        said, refused = await result(
            lambda: asyncio.to_thread(service.explain, call, MemoryReservation(service.budget))
        )
        _, failed = await result(lambda: service.run(call, request))
    finally:
        if service.gpu is not None:
            service.gpu.close()
        service.pool.close()
    if failed is not None:  # an explicit gpu that is short of memory is refused when it runs
        assert (refused, failed) in (("device_unavailable",) * 2, (None, "overloaded"))
        return None
    assert said is not None
    choice = said.decision.choice
    if choice.route == "gpu" and request.route != "gpu":  # it was tried there, and the device was short of memory
        assert (situation.gpu, situation.asked) == (True, "auto")
        assert situation.memory < 1 << 30
        assert (request.route, request.parts) == said.decision.fallback[:2]
    else:
        assert (request.route, request.parts) == (choice.route, choice.parts)
    assert choice.route in [each.route for each in said.decision.routes if each.is_open]
    return choice.route, situation.gpu


def test_what_is_explained_is_what_happens() -> None:
    seen: set[tuple[str, bool] | None] = set()

    @given(situation=SITUATIONS)
    @settings(max_examples=max(150, settings().max_examples))
    def compare(situation: Situation) -> None:
        seen.add(asyncio.run(explained_and_taken(situation)))

    compare()
    cpu = {(route, gpu) for route in ("loop", "thread", "split") for gpu in (True, False)}
    assert seen >= cpu | {("gpu", True)}, "the sample does not reach what it is for"

"""Where a gather runs is decided in one place: an explanation says what then happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.dispatch.choose_backend import NO_STRINGS, TYPICAL, BackendChooser, Decision, Facts, Size
from app.dispatch.gpu_gathers import Gpu
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget, MemoryReservation
from app.operators.gather_plan import Plan
from app.operators.lookup_plan import LookupPlan
from app.services.runner import Explanation
from app.services.service import Service
from app.store import Resident, Store
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call, Device
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.dispatch.fake_device import FakeDevice
from tests.served import served
from tests.strings import packed

T = TypeVar("T")


class OneTensor(Store):
    """A store with the tensor `table`."""

    def __init__(self, tensor: Tensor, cold: bool) -> None:
        self.resident = Resident(tensor, '"1-0"', cold=cold)

    def get(self, name: str) -> Resident | None:
        return self.resident if name == "table" else None


class Situation:
    """A service in one state, and a call to be explained and then carried out."""

    def __init__(self, draw: st.DrawFn) -> None:
        strings = draw(st.integers(0, 7)) == 0
        rows, width = draw(st.sampled_from(((3000, 16), (3000, 16), (1, 1), (40_000, 1), (300, 1000))))
        if strings:
            data: Tensor = packed(["text"] * rows)
        else:
            dtype = DTYPES[draw(st.sampled_from(("float32", "int8", "complex128")))]
            data = Tensor(dtype, (rows, width), np.arange(rows * width).astype(dtype.numpy))
        self.named = draw(st.booleans()) and not strings
        self.cpu_only = NO_STRINGS if strings else None
        self.cold = draw(st.booleans()) and self.named
        self.gpu = draw(st.booleans())
        self.always = draw(st.booleans())
        self.asked: Device = draw(st.sampled_from(("auto", "auto", "cpu", "gpu")))
        self.on_gpu = draw(st.booleans()) and self.named and self.gpu
        self.memory = draw(st.sampled_from((1 << 10, 1 << 18, 1 << 30)))
        # Rates of the CPU and thresholds of the device, so that every route is taken now and then.
        slow = draw(st.sampled_from((1.0, 30.0, 3000.0)))
        self.rates = replace(TYPICAL, far_item_s=slow * TYPICAL.far_item_s, byte_s=slow * TYPICAL.byte_s)
        self.gpu_from = draw(st.sampled_from((Size(1, 1), Size(100, 1 << 12), Size(1e9, 1e9))))
        self.limits = draw(st.sampled_from((None, 0.0, 50.0))), draw(st.sampled_from((None, 0.0, 1e4)))
        self.force: Any = draw(st.sampled_from((None, None, None, "loop", "thread", "split")))
        count = draw(st.sampled_from((1, 40, 900)))
        places = np.arange(count) % rows if draw(st.booleans()) else np.random.default_rng(1).integers(0, rows, count)
        indices = Tensor(DTYPES["int64"], (count, 1), places)
        self.store = OneTensor(data, self.cold)
        self.call = Call("gathernd", "table" if self.named else data, indices, (0,), "onnx-13", self.asked)

    def service(self) -> Service:
        loop_max_us, split_min_us = self.limits
        chooser = BackendChooser(
            threads=2,
            loop_max_us=loop_max_us,
            split_min_us=split_min_us,
            force_route=self.force,
            rates=self.rates,
        )
        made = Service(Limits(), self.store, reference, RequestThreadPool(2, 8), chooser, Budget(1 << 30))
        if self.gpu:
            made.use_gpu(Gpu(FakeDevice(self.memory), self.gpu_from, 10), always=self.always)
        return made


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    return Situation(draw)


async def result(work: Callable[[], Awaitable[T]]) -> tuple[T | None, str | None]:
    """What comes of it, or the code of the error."""
    try:
        return await work(), None
    except GatherError as error:
        return None, error.code


def decision_by(chooser: BackendChooser, situation: Situation, plan: Plan) -> Decision:
    """What `chooser` decides by the facts of the situation."""
    usual = chooser.decide(plan, Facts(cpu_only=situation.cpu_only))
    if not usual.depends_on_request and not situation.cold and situation.asked != "gpu":
        return usual
    return chooser.decide(plan, Facts(situation.asked, situation.cpu_only, situation.cold, situation.on_gpu))


async def explained_and_taken(situation: Situation) -> tuple[Explanation, ServedRequest] | None:
    """What is said and what is done; None where both are refused alike."""
    made = situation.service()
    request = served(made.budget)
    try:
        if situation.on_gpu:
            made.gpu.copies._copies['"1-0"'] = _held(made, situation)  # type: ignore[union-attr]
        before = dict(made.gpu._missed_bytes) if made.gpu is not None else {}
        said, refused = await result(
            lambda: asyncio.to_thread(made.explain, situation.call, MemoryReservation(made.budget))
        )
        assert made.gpu is None or (made.gpu._missed_bytes == before and not made.gpu._copy_tasks)
        _, failed = await result(lambda: made.run(situation.call, request))
        if said is None:
            assert failed == refused == "device_unavailable"
            return None
        assert not isinstance(said.plan, LookupPlan)
        assert said.decision == decision_by(made.chooser, situation, said.plan)
        if failed is not None:
            assert failed == "overloaded"  # an explicit gpu that is short of memory
            assert said.decision.device == "gpu"
            return None
        return said, request
    finally:
        if made.gpu is not None:
            await asyncio.gather(*made.gpu._copy_tasks)
            made.gpu.close()
        made.pool.close()


def _held(made: Service, situation: Situation) -> Any:
    from app.dispatch.gpu_tensor_copies import TensorCopy
    from tests.dispatch.fake_device import FakeCopy

    assert made.gpu is not None
    device = made.gpu.device
    assert isinstance(device, FakeDevice)
    device.memory += situation.store.resident.tensor.array.nbytes
    held = TensorCopy(FakeCopy(device, situation.store.resident.tensor.items))
    held.names.add("table")
    return held


def test_what_is_explained_is_what_happens() -> None:
    seen: set[tuple[str, bool]] = set()

    @given(situation=situations())
    @settings(max_examples=max(150, settings().max_examples))
    def compare(situation: Situation) -> None:
        both = asyncio.run(explained_and_taken(situation))
        if both is None:
            return
        said, request = both
        choice = said.decision.choice
        seen.add((choice.route, situation.gpu))
        if choice.route == "gpu" and request.route != "gpu":
            assert situation.gpu  # it was tried there, and the device was short of memory
            assert situation.asked == "auto"
            assert situation.memory < 1 << 30
            assert (request.route, request.parts) == said.decision.fallback[:2]
        else:
            assert (request.route, request.parts) == (choice.route, choice.parts)
        assert choice.route in [each.route for each in said.decision.routes if each.is_open]

    compare()
    cpu = {(route, gpu) for route in ("loop", "thread", "split") for gpu in (True, False)}
    assert seen >= cpu | {("gpu", True)}, "the sample does not reach what it is for"

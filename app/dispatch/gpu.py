"""What is decided about a GPU: which gathers go there, which resident tensors lie there, and what happens without room.

A tensor that lies on the device is known by its ETag. That is made of an id which is new for each upload and of the
number of scatters since, and never names two contents, so a copy can never be stale; what no name has any more is
dropped by `sweep`. Copies are made

- at once, for a request that asks for the device gpu;
- aside, under `auto`, once the lookups of a tensor would have saved as much time on the device as sending it there
  takes. Whatever comes later, that is at most twice what knowing the future would have cost.

The copy that was used longest ago goes when room is short. Nothing here imports CuPy or needs a GPU: the device is
behind `app.kernels.gpu_protocol.Device`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from app.dispatch.backend_cost_model import BackendChooser, Choice, Coefficients, device_bytes, gpu_seconds
from app.dispatch.request_thread_pool import RequestThreadPool, Ticket
from app.dispatch.writer_exclusion import LockThreads, default_thread, without_writers
from app.errors import GatherError
from app.kernels import gpu_protocol as devices
from app.kernels.gpu_protocol import DeviceFailed, OutOfDeviceMemory
from app.operators.gather_plan import GatherPlan
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor

logger = logging.getLogger("gathernd")
Result = TypeVar("Result")

THREADS: Final = 4
"""Gathers at a time, as many as the device has streams."""
_PAUSES: Final = (0.0, 0.001, 0.01)
_REMEMBERED: Final = 4096
_SAY_AGAIN_S: Final = 60.0


class ResidentTensor(Protocol):
    """A resident tensor at one moment, as `app.store.Resident` is."""

    tensor: Tensor
    etag: str

    @property
    def is_consistent(self) -> bool:
        """Whether what was read since this was made is one content, the one that `etag` names."""
        ...

    def refreshed(self) -> ResidentTensor:
        """The content as it is now."""
        ...

    def exclude_writers(self) -> AbstractContextManager[object]:
        """A context in which it does not change; entering blocks."""
        ...


class Outcome(NamedTuple):
    """What came of a gather on the device: as of a kernel, and the ETag of the content that was read, if resident."""

    bad: int
    out: NDArray[Any]
    etag: str | None


class _Prices(NamedTuple):
    """Predictions for one plan: the device's seconds for data in the request, and for data that lies there."""

    inline_s: float
    resident_s: float


class _Changing(Exception):
    """The content changed while it was copied."""


class _Held:
    """A copy on the device, how many gathers read it now, and the names whose tensors have that content."""

    __slots__ = ("copy", "names", "readers")

    def __init__(self, copy: devices.Copy) -> None:
        self.copy = copy
        self.names: set[str] = set()
        self.readers = 0


class Gpu:
    """One device and what lies there. Methods without a note are for the event loop."""

    def __init__(
        self,
        device: devices.Device,
        chooser: BackendChooser,
        queue: int,
        patience: float = 3600.0,
        *,
        always: bool = False,
    ) -> None:
        """`queue` calls may wait, each for `patience` seconds; with `always`, `auto` means the device if it works."""
        self.device = device
        self.always = always
        self.chooser = chooser
        self.pool = RequestThreadPool(THREADS, queue, patience)
        self.failed: str | None = None
        self.fallbacks = self.evictions = self.copies = 0
        self._held: dict[str, _Held] = {}  # by ETag; the one used longest ago is the first
        self._lock = Lock()
        self._copying = Lock()
        self._saved: dict[str, float] = {}
        self._fetching: set[asyncio.Task[None]] = set()
        self._prices: dict[GatherPlan, _Prices] = {}
        self._coefficients: Coefficients | None = None
        self._said = -_SAY_AGAIN_S
        self.lock_threads: LockThreads = default_thread
        """As in `Service`."""

    # Choosing

    def holds(self, etag: str) -> bool:
        """Whether content with this ETag lies on the device."""
        return etag in self._held

    def choose(self, call: Call, plan: GatherPlan, cpu: Choice, there: bool) -> Choice:
        """The route `gpu` where that is asked for or, under `auto`, predicted to be the shortest; else `cpu`.

        For data that a GPU can hold; `cpu` is the best of the CPU's routes, and `there` says that the data lies on the
        device. Changes nothing. Raises device_unavailable.
        """
        if self.failed is not None and call.device == "gpu":
            detail = f"{self.failed}; use device auto or cpu"
            raise GatherError("device_unavailable", detail, pointer=call.device_pointer)
        if call.device == "cpu" or self.failed is not None:
            return cpu
        prices = self._price(plan)
        seconds = prices.resident_s if there else prices.inline_s
        if call.device == "gpu" or self.always:
            return Choice("gpu", seconds)
        return Choice("gpu", seconds) if seconds < cpu.seconds and self.fits(plan, there) else cpu

    def fits(self, plan: GatherPlan, there: bool) -> bool:
        """Whether the gather fits into the device's memory."""
        return device_bytes(plan, there) <= self.device.memory

    def earn(self, call: Call, plan: GatherPlan, cpu: Choice, content: ResidentTensor) -> None:
        """Count what a lookup of `content` under `auto`, for which `cpu` is the CPU's best, would save on the device.

        Once that is as much as the sending takes, it is sent there, aside; nothing happens where it lies there already.
        """
        if call.device != "auto" or self.always or self.failed is not None or content.etag in self._held:
            return
        saved = cpu.seconds - self._price(plan).resident_s
        if saved > 0:
            self._earn(name_of(call), content, saved)

    def _price(self, plan: GatherPlan) -> _Prices:
        coefficients = self.chooser.coefficients
        if coefficients is not self._coefficients:
            self._prices.clear()
            self._coefficients = coefficients
        prices = self._prices.get(plan)
        if prices is None:
            inline_s = resident_s = float("inf")
            if coefficients.gpu is not None:
                inline_s, resident_s = (
                    gpu_seconds(plan, there, coefficients.hand_off_s, coefficients.gpu) for there in (False, True)
                )
            if len(self._prices) >= _REMEMBERED:
                self._prices.clear()
            prices = self._prices[plan] = _Prices(inline_s, resident_s)
        return prices

    # Running

    async def gather(
        self,
        call: Call,
        plan: GatherPlan,
        data: Tensor,
        content: ResidentTensor | None,
        out: NDArray[Any],
        started: Callable[[], None],
        ticket: Ticket | None = None,
    ) -> Outcome | None:
        """Gather on the device into `out`, or None where that failed and the request leaves the device to the service.

        `started` is called in a thread when the work begins; `ticket` is as for the pool. Raises overloaded for want of
        device memory and device_unavailable for a broken device where the request asks for the device gpu, and what the
        pool raises.
        """
        indices = call.indices.array

        def work(content: ResidentTensor | None) -> Outcome:
            started()
            if content is None:
                return Outcome(self._fitted(lambda: self.device.run(plan, data.items, indices, out)), out, None)
            held = self._take(name_of(call), content)
            try:
                bad = self._fitted(lambda: self.device.run(plan, held.copy, indices, out))
            finally:
                with self._lock:
                    held.readers -= 1
            return Outcome(bad, out, content.etag)

        try:
            return await self._steadily(name_of(call), work, content, ticket)
        except OutOfDeviceMemory as short:
            problem, code = f"the GPU is short of memory: {short}", "overloaded"
        except DeviceFailed as failure:
            self._give_up(str(failure))
            problem, code = f"the GPU has failed: {failure}", "device_unavailable"
        if call.device == "gpu":
            if code == "overloaded":
                raise GatherError("overloaded", problem, retry_after=1)
            raise GatherError("device_unavailable", problem, pointer=call.device_pointer)
        self.fallbacks += 1
        if monotonic() - self._said >= _SAY_AGAIN_S:
            self._said = monotonic()
            logger.warning("%s; gathers for which the device is ours to choose run on the CPU", problem)
        return None

    async def _steadily(
        self,
        name: str,
        work: Callable[[ResidentTensor | None], Outcome],
        content: ResidentTensor | None,
        ticket: Ticket | None,
    ) -> Outcome:
        """Carry out `work`, again if content that had to be copied changed meanwhile, at last while it cannot."""
        for pause in _PAUSES:
            try:
                return await self.pool.run(partial(work, content), ticket)
            except _Changing:
                assert content is not None
                await asyncio.sleep(pause)
                content = content.refreshed()
        assert content is not None
        deadline = inf if ticket is None else ticket.deadline
        async with without_writers(content, name, self.lock_threads, deadline):
            content = content.refreshed()
            return await self.pool.run(partial(work, content), ticket)

    def _take(self, name: str, content: ResidentTensor) -> _Held:
        """In a thread: the copy of `content`, made now if need be, with one more reader."""
        held = self._find(name, content.etag)
        if held is None:
            with self._copying:  # one after the other: they would only share the way to the device
                held = self._find(name, content.etag)
                if held is None:
                    held = _Held(self._upload(content))
                    held.readers = 1
                    held.names.add(name)
                    with self._lock:
                        self._held[content.etag] = held
                    self.copies += 1
        return held

    def _find(self, name: str, etag: str) -> _Held | None:
        with self._lock:
            held = self._held.pop(etag, None)
            if held is not None:
                self._held[etag] = held  # as the one used last
                held.names.add(name)
                held.readers += 1
            return held

    def _upload(self, content: ResidentTensor) -> devices.Copy:
        items = content.tensor.items
        if items.nbytes > self.device.memory:
            raise OutOfDeviceMemory(f"{items.nbytes} bytes are more than the {self.device.memory} that it has for us")
        if not content.is_consistent:
            raise _Changing
        copy = self._fitted(lambda: self.device.upload(items))
        if not content.is_consistent:
            raise _Changing
        return copy

    def _fitted(self, work: Callable[[], Result]) -> Result:
        """In a thread: `work`, tried again after each copy that could be dropped to make room."""
        while True:
            try:
                return work()
            except OutOfDeviceMemory:
                if not self._evict():
                    raise

    def _evict(self) -> bool:
        """Drop the copy that was used longest ago and that nobody reads; False where there is none."""
        with self._lock:
            for etag, held in self._held.items():
                if held.readers == 0:
                    del self._held[etag]
                    self.evictions += 1
                    return True
        return False

    # Copies made aside

    def _earn(self, name: str, content: ResidentTensor, seconds: float) -> None:
        """Count what a lookup would have saved on the device, and send the content there when that is its price."""
        etag = content.etag
        gpu = self.chooser.coefficients.gpu
        nbytes = content.tensor.items.nbytes
        if gpu is None or nbytes > self.device.memory:
            return
        saved = self._saved.get(etag, 0.0) + seconds
        if saved < nbytes * gpu.to_device_byte_s:
            if len(self._saved) >= _REMEMBERED:
                self._saved.clear()
            self._saved[etag] = saved
            return
        self._saved[etag] = float("-inf")  # until this attempt has ended
        task = asyncio.get_running_loop().create_task(self._fetch(name, content))
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    async def _fetch(self, name: str, content: ResidentTensor) -> None:
        def work() -> None:
            held = self._take(name, content)
            with self._lock:
                held.readers -= 1

        try:
            await self.pool.run(work)
        except (OutOfDeviceMemory, GatherError, _Changing) as reason:
            logger.debug("%r is not copied to the GPU: %s", name, reason)
        except DeviceFailed as failure:
            self._give_up(str(failure))
        finally:
            self._saved.pop(content.etag, None)

    # Looking after it

    def sweep(self, etag_of: Callable[[str], str | None]) -> None:
        """Drop copies whose content no name has any more; `etag_of` says which ETag a name has now. Cheap."""
        with self._lock:
            for etag, held in list(self._held.items()):
                held.names = {name for name in held.names if etag_of(name) == etag}
                if not held.names:
                    del self._held[etag]

    def resident_bytes(self) -> int:
        """Bytes of the copies on the device."""
        return sum(held.copy.nbytes for held in list(self._held.values()))

    def close(self) -> None:
        """Carry out what waits, and give the device's memory back."""
        self.pool.close()
        self._held.clear()

    def _give_up(self, why: str) -> None:
        """After an error of the device nothing in this process can use it any more."""
        if self.failed is None:
            logger.error("the GPU has failed and is not used until the service is started again: %s", why)
            self.failed = f"the GPU has failed: {why}"
            self.chooser.no_gpu = self.failed
            self._held.clear()


def name_of(call: Call) -> str:
    """The name of the resident tensor that a call reads, "" for data of its own."""
    return call.data if isinstance(call.data, str) else ""

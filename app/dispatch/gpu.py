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

from app.bounded_cache import BoundedCache
from app.dispatch.backend_cost_model import BackendChooser, Coefficients, RouteChoice, device_bytes, gpu_seconds
from app.dispatch.request_thread_pool import PoolRequest, RequestThreadPool
from app.dispatch.writer_exclusion import RunInLockThread, default_thread, without_writers
from app.errors import GatherError
from app.kernels import gpu_protocol as devices
from app.kernels.gpu_protocol import DeviceFailed, OutOfDeviceMemory
from app.operators.gather_plan import GatherPlan, Plan
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor

logger = logging.getLogger("gathernd")
Result = TypeVar("Result")

THREADS: Final = 4
"""Gathers at a time, as many as the device has streams."""
_PAUSES: Final = (0.0, 0.001, 0.01)
_MAX_REMEMBERED: Final = 4096
_WARN_INTERVAL_S: Final = 60.0


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


class _Prediction(NamedTuple):
    """Predictions for one plan: the device's seconds for data in the request, and for data that lies there."""

    inline_s: float
    resident_s: float


class _ContentChanged(Exception):
    """The content changed while it was copied."""


class _DeviceCopy:
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
        queue_timeout: float = 3600.0,
        *,
        always: bool = False,
    ) -> None:
        """`queue` calls may wait, each for `patience` seconds; with `always`, `auto` means the device if it works."""
        self.device = device
        self.always = always
        self.chooser = chooser
        self.pool = RequestThreadPool(THREADS, queue, queue_timeout)
        self.failed: str | None = None
        self.fallbacks = self.evictions = self.copies = 0
        self._copies: dict[str, _DeviceCopy] = {}  # by ETag; the one used longest ago is the first
        self._lock = Lock()
        self._upload_lock = Lock()
        self._saved_seconds: BoundedCache[str, float] = BoundedCache(_MAX_REMEMBERED)
        self._copy_tasks: set[asyncio.Task[None]] = set()
        self._predictions: BoundedCache[Plan, _Prediction] = BoundedCache(_MAX_REMEMBERED)
        self._coefficients: Coefficients | None = None
        self._warned_at = -_WARN_INTERVAL_S
        self.run_in_lock_thread: RunInLockThread = default_thread
        """As in `Service`."""

    # Choosing

    def has_copy(self, etag: str) -> bool:
        """Whether content with this ETag lies on the device."""
        return etag in self._copies

    def choose(self, call: Call, plan: Plan, cpu: RouteChoice, on_device: bool) -> RouteChoice:
        """The route `gpu` where that is asked for or, under `auto`, predicted to be the shortest; else `cpu`.

        For data that a GPU can hold; `cpu` is the best of the CPU's routes, and `there` says that the data lies on the
        device. Changes nothing. Raises device_unavailable.
        """
        if self.failed is not None and call.device == "gpu":
            detail = f"{self.failed}; use device auto or cpu"
            raise GatherError("device_unavailable", detail, pointer=call.device_pointer)
        if call.device == "cpu" or self.failed is not None:
            return cpu
        prices = self._predict(plan)
        seconds = prices.resident_s if on_device else prices.inline_s
        if call.device == "gpu" or self.always:
            return RouteChoice("gpu", seconds)
        return RouteChoice("gpu", seconds) if seconds < cpu.seconds and self.fits(plan, on_device) else cpu

    def fits(self, plan: Plan, on_device: bool) -> bool:
        """Whether the gather fits into the device's memory."""
        return device_bytes(plan, on_device) <= self.device.memory

    def count_saving(self, call: Call, plan: Plan, cpu: RouteChoice, content: ResidentTensor) -> None:
        """Count what a lookup of `content` under `auto`, for which `cpu` is the CPU's best, would save on the device.

        Once that is as much as the sending takes, it is sent there, aside; nothing happens where it lies there already.
        """
        if call.device != "auto" or self.always or self.failed is not None or content.etag in self._copies:
            return
        saved = cpu.seconds - self._predict(plan).resident_s
        if saved > 0:
            self._add_saving(name_of(call), content, saved)

    def _predict(self, plan: Plan) -> _Prediction:
        coefficients = self.chooser.coefficients
        if coefficients is not self._coefficients:
            self._predictions.clear()
            self._coefficients = coefficients
        prices = self._predictions.get(plan)
        if prices is None:
            inline_s = resident_s = float("inf")
            if coefficients.gpu is not None:
                inline_s, resident_s = (
                    gpu_seconds(plan, there, coefficients.hand_off_s, coefficients.gpu) for there in (False, True)
                )
            prices = self._predictions[plan] = _Prediction(inline_s, resident_s)
        return prices

    # Running

    async def gather(
        self,
        call: Call,
        plan: Plan,
        data: Tensor,
        content: ResidentTensor | None,
        out: NDArray[Any],
        started: Callable[[], None],
        ticket: PoolRequest | None = None,
    ) -> Outcome | None:
        """Gather on the device into `out`, or None where that failed and the request leaves the device to the service.

        `started` is called in a thread when the work begins; `ticket` is as for the pool. Raises overloaded for want of
        device memory and device_unavailable for a broken device where the request asks for the device gpu, and what the
        pool raises.
        """
        assert isinstance(plan, GatherPlan)  # what other plans the service has run on the CPU
        indices = call.indices.array

        def work(content: ResidentTensor | None) -> Outcome:
            started()
            if content is None:
                return Outcome(self._with_eviction(lambda: self.device.run(plan, data.items, indices, out)), out, None)
            held = self._acquire(name_of(call), content)
            try:
                bad = self._with_eviction(lambda: self.device.run(plan, held.copy, indices, out))
            finally:
                with self._lock:
                    held.readers -= 1
            return Outcome(bad, out, content.etag)

        try:
            return await self._steadily(name_of(call), work, content, ticket)
        except OutOfDeviceMemory as short:
            problem, code = f"the GPU is short of memory: {short}", "overloaded"
        except DeviceFailed as failure:
            self._mark_failed(str(failure))
            problem, code = f"the GPU has failed: {failure}", "device_unavailable"
        if call.device == "gpu":
            if code == "overloaded":
                raise GatherError("overloaded", problem, retry_after=1)
            raise GatherError("device_unavailable", problem, pointer=call.device_pointer)
        self.fallbacks += 1
        if monotonic() - self._warned_at >= _WARN_INTERVAL_S:
            self._warned_at = monotonic()
            logger.warning("%s; gathers for which the device is ours to choose run on the CPU", problem)
        return None

    async def _steadily(
        self,
        name: str,
        work: Callable[[ResidentTensor | None], Outcome],
        content: ResidentTensor | None,
        ticket: PoolRequest | None,
    ) -> Outcome:
        """Carry out `work`, again if content that had to be copied changed meanwhile, at last while it cannot."""
        for pause in _PAUSES:
            try:
                return await self.pool.run(partial(work, content), ticket)
            except _ContentChanged:
                assert content is not None
                await asyncio.sleep(pause)
                content = content.refreshed()
        assert content is not None
        deadline = inf if ticket is None else ticket.deadline
        async with without_writers(content, name, self.run_in_lock_thread, deadline):
            content = content.refreshed()
            return await self.pool.run(partial(work, content), ticket)

    def _acquire(self, name: str, content: ResidentTensor) -> _DeviceCopy:
        """In a thread: the copy of `content`, made now if need be, with one more reader."""
        held = self._find(name, content.etag)
        if held is None:
            with self._upload_lock:  # one after the other: they would only share the way to the device
                held = self._find(name, content.etag)
                if held is None:
                    held = _DeviceCopy(self._upload(content))
                    held.readers = 1
                    held.names.add(name)
                    with self._lock:
                        self._copies[content.etag] = held
                    self.copies += 1
        return held

    def _find(self, name: str, etag: str) -> _DeviceCopy | None:
        with self._lock:
            held = self._copies.pop(etag, None)
            if held is not None:
                self._copies[etag] = held  # as the one used last
                held.names.add(name)
                held.readers += 1
            return held

    def _upload(self, content: ResidentTensor) -> devices.Copy:
        items = content.tensor.items
        if items.nbytes > self.device.memory:
            raise OutOfDeviceMemory(f"{items.nbytes} bytes are more than the {self.device.memory} that it has for us")
        if not content.is_consistent:
            raise _ContentChanged
        copy = self._with_eviction(lambda: self.device.upload(items))
        if not content.is_consistent:
            raise _ContentChanged
        return copy

    def _with_eviction(self, work: Callable[[], Result]) -> Result:
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
            for etag, held in self._copies.items():
                if held.readers == 0:
                    del self._copies[etag]
                    self.evictions += 1
                    return True
        return False

    # Copies made aside

    def _add_saving(self, name: str, content: ResidentTensor, seconds: float) -> None:
        """Count what a lookup would have saved on the device, and send the content there when that is its price."""
        etag = content.etag
        gpu = self.chooser.coefficients.gpu
        nbytes = content.tensor.items.nbytes
        if gpu is None or nbytes > self.device.memory:
            return
        saved = self._saved_seconds.get(etag, 0.0) + seconds
        if saved < nbytes * gpu.to_device_byte_s:
            self._saved_seconds[etag] = saved
            return
        self._saved_seconds[etag] = float("-inf")  # until this attempt has ended
        task = asyncio.get_running_loop().create_task(self._copy_in_background(name, content))
        self._copy_tasks.add(task)
        task.add_done_callback(self._copy_tasks.discard)

    async def _copy_in_background(self, name: str, content: ResidentTensor) -> None:
        def work() -> None:
            held = self._acquire(name, content)
            with self._lock:
                held.readers -= 1

        try:
            await self.pool.run(work)
        except (OutOfDeviceMemory, GatherError, _ContentChanged) as reason:
            logger.debug("%r is not copied to the GPU: %s", name, reason)
        except DeviceFailed as failure:
            self._mark_failed(str(failure))
        finally:
            self._saved_seconds.pop(content.etag, None)

    # Looking after it

    def sweep(self, etag_of: Callable[[str], str | None]) -> None:
        """Drop copies whose content no name has any more; `etag_of` says which ETag a name has now. Cheap."""
        with self._lock:
            for etag, held in list(self._copies.items()):
                held.names = {name for name in held.names if etag_of(name) == etag}
                if not held.names:
                    del self._copies[etag]

    def resident_bytes(self) -> int:
        """Bytes of the copies on the device."""
        return sum(held.copy.nbytes for held in list(self._copies.values()))

    def close(self) -> None:
        """Carry out what waits, and give the device's memory back."""
        self.pool.close()
        self._copies.clear()

    def _mark_failed(self, why: str) -> None:
        """After an error of the device nothing in this process can use it any more."""
        if self.failed is None:
            logger.error("the GPU has failed and is not used until the service is started again: %s", why)
            self.failed = f"the GPU has failed: {why}"
            self.chooser.no_gpu = self.failed
            self._copies.clear()


def name_of(call: Call) -> str:
    """The name of the resident tensor that a call reads, "" for data of its own."""
    return call.data if isinstance(call.data, str) else ""

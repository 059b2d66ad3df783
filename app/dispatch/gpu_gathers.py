"""Gathers on a GPU: copies of resident tensors, execution, and error handling.

`choose_backend` decides which gathers run there. A resident tensor is copied to the device

- immediately, for a request with the device gpu;
- in the background, under `auto`, as soon as the bytes that gathers have read from host memory add up to the size of
  the copy. Only reads that a copy would have saved count. For any sequence of requests, the total cost is then at most
  twice the optimum.

This module does not import CuPy or need a GPU: the device is an `app.kernels.gpu_interface.Device`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.dispatch.choose_backend import Size
from app.dispatch.gpu_tensor_copies import ContentChanged, GpuTensorCopies
from app.dispatch.read_without_writers import ResidentTensor
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels.gpu_interface import Device, DeviceFailed, OutOfDeviceMemory
from app.operators.gather_plan import GatherPlan, Plan
from app.telemetry.served_request import ServedRequest
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor

logger = logging.getLogger("gathernd")

THREADS: Final = 4
"""Number of concurrent gathers, equal to the number of the device's streams."""
_MAX_REMEMBERED: Final = 4096
_WARN_INTERVAL_S: Final = 60.0


class Outcome(NamedTuple):
    """The result of a gather on the device: the first invalid index or -1, the output, and the ETag of resident
    data.
    """

    bad: int
    out: NDArray[Any]
    etag: str | None


class Gpu:
    """One device with its gathers in flight and its copies of tensors. Use it from the event loop."""

    def __init__(self, device: Device, threshold: Size, queue: int, queue_timeout: float = 3600.0) -> None:
        """Create the queue for a device that runs gathers of size `threshold` or more.

        At most `queue` gathers wait, each for at most `queue_timeout` seconds.
        """
        self.device = device
        self.threshold = threshold
        self.pool = RequestThreadPool(THREADS, queue, queue_timeout)
        self.on_failure: Callable[[str], None] = lambda why: None
        """Called once with the reason when the device fails."""
        self.on_fallback: Callable[[], None] = lambda: None
        """Called when the CPU runs a gather that was routed to the device."""
        self._failed = False
        self.copies = GpuTensorCopies(device)
        self._missed_bytes: BoundedCache[str, float] = BoundedCache(_MAX_REMEMBERED)
        self._copy_tasks: set[asyncio.Task[None]] = set()
        self._warned_at = -_WARN_INTERVAL_S

    # Running

    async def gather(
        self,
        call: Call,
        plan: Plan,
        data: Tensor,
        content: ResidentTensor | None,
        out: NDArray[Any],
        started: Callable[[], None],
        request: ServedRequest | None = None,
    ) -> Outcome | None:
        """Gather on the device into `out`. Returns None if it failed and the request does not require the device.

        `started` is called in a thread when the gather starts; `request` is passed to the pool. For a request with the
        device gpu, raises overloaded if device memory is short, and device_unavailable if the device is broken. May
        also raise ContentChanged and the errors of `RequestThreadPool.run`.
        """
        assert isinstance(plan, GatherPlan)  # the service runs other plans on the CPU
        indices = call.indices.array

        def work() -> Outcome:
            started()
            if content is None:
                bad = self.copies.with_eviction(lambda: self.device.run(plan, data.items, indices, out))
                return Outcome(bad, out, None)
            copy = self.copies.acquire(name_of(call), content)
            try:
                bad = self.copies.with_eviction(lambda: self.device.run(plan, copy.items, indices, out))
            finally:
                self.copies.release(copy)
            return Outcome(bad, out, content.etag)

        try:
            return await self.pool.run(work, request)
        except OutOfDeviceMemory as short:
            problem, code = f"the GPU is short of memory: {short}", "overloaded"
        except DeviceFailed as failure:
            self._mark_failed(str(failure))
            problem, code = f"the GPU failed: {failure}", "device_unavailable"
        if call.device == "gpu":
            if code == "overloaded":
                raise GatherError("overloaded", problem, retry_after=1)
            raise GatherError("device_unavailable", problem, pointer=call.pointer("device"))
        self.on_fallback()
        if monotonic() - self._warned_at >= _WARN_INTERVAL_S:
            self._warned_at = monotonic()
            logger.warning("%s; gathers under auto run on the CPU", problem)
        return None

    # Copies of resident tensors

    def has_copy(self, etag: str) -> bool:
        """Return whether the device holds a copy of the version with this ETag."""
        return etag in self.copies

    def count_missed(self, name: str, content: ResidentTensor, missed_bytes: int) -> None:
        """Count bytes that a gather read from host memory because there was no copy.

        When the bytes add up to the size of a copy, starts one. Does nothing if `content` is already copied or does not
        fit into the device's memory.
        """
        etag, nbytes = content.etag, content.tensor.items.nbytes
        if missed_bytes <= 0 or etag in self.copies or nbytes > self.device.memory:
            return
        missed = self._missed_bytes.get(etag, 0.0) + missed_bytes
        if missed < nbytes:
            self._missed_bytes[etag] = missed
            return
        self._missed_bytes[etag] = -inf  # until this attempt has ended
        task = asyncio.get_running_loop().create_task(self._copy_in_background(name, content))
        self._copy_tasks.add(task)
        task.add_done_callback(self._copy_tasks.discard)

    async def _copy_in_background(self, name: str, content: ResidentTensor) -> None:
        def work() -> None:
            self.copies.release(self.copies.acquire(name, content))

        try:
            await self.pool.run(work)
        except (OutOfDeviceMemory, GatherError, ContentChanged) as reason:
            logger.debug("%r is not copied to the GPU: %s", name, reason)
        except DeviceFailed as failure:
            self._mark_failed(str(failure))
        finally:
            self._missed_bytes.pop(content.etag, None)

    def close(self) -> None:
        """Run the remaining queued gathers, then free the device's memory."""
        self.pool.close()
        self.copies.clear()

    def _mark_failed(self, why: str) -> None:
        """Record that the device reported an error. This process does not use it again."""
        if not self._failed:
            logger.error("the GPU failed and will not be used until the service restarts: %s", why)
            self._failed = True
            self.on_failure(f"the GPU failed: {why}")
            self.copies.clear()


def name_of(call: Call) -> str:
    """Return the name of the resident tensor that a call reads, or "" for data in the request."""
    return call.data if isinstance(call.data, str) else ""

"""What calls run with: limits, store, kernels, threads, memory, and the choice of a route.

There is one per process; everything it needs is handed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import Any

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.consistent_reads import RunInLockThread, attempts, default_thread
from app.dispatch.gpu_gathers import Gpu
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import CpuKernel, Kernel
from app.memory.budget import Budget
from app.memory.malloc_tuning import MAX_KEPT_BYTES
from app.memory.output_buffer_pool import OutputBufferPool
from app.store import Resident, Store
from app.store.store_errors import unknown_reference
from app.telemetry.served_request import ServedRequest
from app.tensors.shape_limits import Limits


class CallResources:
    """What the runners of calls share.

    `use_gpu` is called once a device was found and measured; without one `gpu` stays None.
    """

    def __init__(
        self,
        limits: Limits,
        store: Store,
        kernel: CpuKernel,
        pool: RequestThreadPool,
        chooser: BackendChooser,
        budget: Budget,
    ) -> None:
        self.limits = limits
        self.store = store
        self.kernel: Kernel = kernel
        self.lookup_kernel = kernel
        self.pool = pool
        self.chooser = chooser
        self.budget = budget
        self.gpu: Gpu | None = None
        self.run_in_lock_thread: RunInLockThread = default_thread
        """Runs the wait for a tensor's lock in a thread that other tensors do not need."""
        self.outputs = OutputBufferPool(min(budget.total // 8, MAX_KEPT_BYTES))

    def use_gpu(self, gpu: Gpu, *, always: bool = False) -> None:
        """Gathers may run on `gpu` from now on, until it fails; with `always` all do that it can hold."""

        def stop(why: str) -> None:
            self.chooser = replace(self.chooser, no_gpu=why)

        gpu.on_failure = stop
        self.gpu = gpu
        self.chooser = replace(
            self.chooser, no_gpu=None, gpu_memory=gpu.device.memory, gpu_from=gpu.threshold, always_gpu=always
        )

    def resolve(self, reference: str, pointer: str) -> Resident:
        """The resident tensor that a request names at `pointer`. Raises tensor_not_found and tensor_damaged."""
        resident = self.store.get(reference)
        if resident is None:
            raise unknown_reference(reference, pointer, self.store)
        return resident

    async def read_again(
        self,
        name: str,
        resident: Resident,
        read: Callable[[Resident], Coroutine[Any, Any, object]],
        request: ServedRequest,
    ) -> Resident:
        """Have `read` read a tensor again until no scatter changed it meanwhile, at last with writers kept out.

        Dtype and shape of a content never change, and so the plan holds; a new content under the name is not read.
        Returns the version that was read.
        """
        versions = attempts(resident, name, self.run_in_lock_thread, request.deadline)
        async with aclosing(versions):
            async for version in versions:
                await read(version)
                resident = version
                if version.is_consistent:
                    break
        return resident

    def start_kernel(self, request: ServedRequest) -> None:
        """A kernel begins now. Raises deadline_exceeded where that is too late."""
        now = perf_counter()
        if now > request.deadline:
            raise GatherError("deadline_exceeded", "the request waited until its deadline had passed", retry_after=1)
        request.kernel = now

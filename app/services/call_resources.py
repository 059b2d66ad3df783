"""The resources that all calls share: limits, store, kernels, threads, memory, and the choice of a route.

Each process has one instance, which receives everything it needs as arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, TypeVar

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.gpu_gathers import Gpu
from app.dispatch.read_without_writers import RunInLockThread, VersionChanged, default_thread, without_writers
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import Code, GatherError
from app.kernels import CpuKernel, Kernel
from app.memory.budget import Budget
from app.memory.malloc_tuning import MAX_KEPT_BYTES
from app.memory.output_buffer_pool import OutputBufferPool
from app.store import Resident, Store
from app.store.store_errors import unknown_reference
from app.telemetry.served_request import ServedRequest
from app.tensors.shape_limits import Limits

_RETRY_PAUSES_S: Final = (0.0, 0.0002, 0.001, 0.003, 0.01, 0.03)
"""Seconds to pause before each attempt to read while there are writers.

One scatter takes a few microseconds; several in a row take a few milliseconds.
"""
_ABOUT_A_VERSION: Final[tuple[Code, ...]] = ("key_not_found", "index_out_of_bounds")
"""Errors that may be specific to the version of the table that was read, because keys and rows change."""
Result = TypeVar("Result")


class CallResources:
    """The resources that the runners of calls share.

    `gpu` is None until `use_gpu` is called, which happens after a device has been found and measured.
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
        """Waits for a tensor's lock in a thread that no other tensor depends on."""
        self.outputs = OutputBufferPool(min(budget.total // 8, MAX_KEPT_BYTES))

    def use_gpu(self, gpu: Gpu, *, always: bool = False) -> None:
        """Allow gathers to run on `gpu` until it fails. With `always`, it gets every gather whose data it can hold."""

        def stop(why: str) -> None:
            self.chooser = replace(self.chooser, no_gpu=why)

        gpu.on_failure = stop
        self.gpu = gpu
        self.chooser = replace(
            self.chooser, no_gpu=None, gpu_memory=gpu.device.memory, gpu_from=gpu.threshold, always_gpu=always
        )

    def resolve(self, reference: str, pointer: str) -> Resident:
        """Return the resident tensor that the request refers to at `pointer`.

        Raises tensor_not_found and tensor_damaged.
        """
        resident = self.store.get(reference)
        if resident is None:
            raise unknown_reference(reference, pointer, self.store)
        return resident

    def resolve_all(self, named: Sequence[tuple[str, str]]) -> list[Resident]:
        """Return the resident tensors of several references, each given with its pointer in the request.

        All references are resolved in one state of the store, so a request never mixes the states before and after a
        change. Raises tensor_not_found and tensor_damaged.
        """
        found: list[Resident] = []
        for (reference, pointer), resident in zip(named, self.store.get_all([one for one, _ in named]), strict=False):
            if resident is None:
                raise unknown_reference(reference, pointer, self.store)
            found.append(resident)
        return found

    async def read_again(
        self,
        versions: dict[str, Resident],
        read: Callable[[], Coroutine[Any, Any, Result]],
        request: ServedRequest,
        *,
        is_slow: bool = False,
    ) -> Result:
        """Call `read` until none of `versions` changes during the read. The last attempts lock writers out.

        The keys of `versions` are the names that the request uses. Each version is refreshed before `read` is called,
        but a new version published under the same name is not read. If `is_slow`, skips the attempts without a lock,
        because each of them would take long. `read` raises VersionChanged if a version has changed; its other errors
        propagate.
        """
        for pause in () if is_slow else _RETRY_PAUSES_S:
            await asyncio.sleep(pause)
            _refresh_all(versions)
            with suppress(VersionChanged):
                return await read()
        while True:
            name = next((name for name, one in versions.items() if not one.is_consistent), next(iter(versions)))
            async with without_writers(versions[name], name, self.run_in_lock_thread, request.deadline):
                _refresh_all(versions)
                with suppress(VersionChanged):
                    return await read()
            # another version changed, or a change could not be finished on disk
            await asyncio.sleep(_RETRY_PAUSES_S[-1])

    def start_kernel(self, request: ServedRequest) -> None:
        """Record that a kernel is about to start. Raises deadline_exceeded if the deadline has passed."""
        now = perf_counter()
        if now > request.deadline:
            raise GatherError("deadline_exceeded", "the request waited until its deadline passed", retry_after=1)
        request.kernel = now


def may_be_outdated(error: GatherError, versions: Iterable[Resident]) -> bool:
    """Return whether an error depends on the data of a version that has since changed."""
    return error.code in _ABOUT_A_VERSION and not all(one.is_consistent for one in versions)


def _refresh_all(versions: dict[str, Resident]) -> None:
    for name, one in versions.items():
        if not one.is_consistent:
            versions[name] = one.refreshed()

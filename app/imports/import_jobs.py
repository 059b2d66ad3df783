"""Run imports on an event loop in a separate thread.

`ImportJobs.begin` opens the source and reads its header, so that a client learns of errors in the source immediately.
It then begins an upload in the store, which checks the quota and the disk, and writes the record. In the background,
the import then reads, checks, hashes and writes the bytes, as for an upload, and commits. Nothing is visible before the
commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from threading import BoundedSemaphore, Thread
from typing import Any, Final, TypeVar

from app.errors import GatherError
from app.imports import read_source
from app.imports.import_steps import ImportSpec, ImportSteps
from app.imports.source import Source, SourceFailed
from app.imports.source_urls import AllowedSources
from app.imports.tensor_in_file import find_tensor
from app.memory.budget import Budget, MemoryReservation
from app.memory.error_tracebacks import drop_tracebacks, forget_failure
from app.store import LocalStore
from app.store.import_records import ImportRecord, State
from app.store.tensor_store_interface import TensorStore
from app.telemetry.tensor_change_log import Caller, Change, write_change

logger = logging.getLogger("gathernd")
T = TypeVar("T")
_LOOK_S: Final = 0.5
"""Seconds between updates of a running import's progress, and between checks for its cancellation."""


class ImportJobs:
    """This process's imports into `tensors` (default: `store`), at most `at_once` of them concurrently.

    Their records are kept in `store`. `count` is called with the final state and the byte count of each import.
    """

    def __init__(
        self,
        store: LocalStore,
        allowed: AllowedSources,
        budget: Budget,
        *,
        max_bytes: int,
        at_once: int,
        count: Callable[[State, int], None],
        tensors: TensorStore | None = None,
    ) -> None:
        self.allowed = allowed
        self._store = store
        self._tensors: TensorStore = store if tensors is None else tensors
        self._budget = budget
        self._max_bytes = max_bytes
        self._at_once = at_once
        self._count = count
        self._free = BoundedSemaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._closing = False
        self._disk: Executor = ThreadPoolExecutor(at_once, "import")

    async def begin(self, request: ImportSpec, caller: Caller | None = None) -> ImportRecord:
        """Begin an import and return its record; the import continues in the background.

        When the import ends, a log line identifies `caller`.

        Raises import_failed, invalid_field (at /tensor or /keys), overloaded, payload_too_large, limit_exceeded,
        insufficient_storage and name_conflict.
        """
        if self._closing or not self._free.acquire(blocking=False):
            raise GatherError(
                "overloaded",
                f"{self._at_once} imports are in progress in this process, which is the limit",
                facts={"limit": "imports", "maximum": self._at_once},
                retry_after=5,
            )
        working: Coroutine[Any, Any, ImportRecord] = self._begin(request, caller)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(working, self._running_loop()))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="imports", daemon=True)
            self._thread.start()
        return self._loop

    def close(self) -> None:
        """Stop all running imports and update their records. Blocks until they have ended."""
        self._closing = True
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._disk.shutdown()

    async def _cancel_all(self) -> None:
        # This includes imports that are just beginning, because `run_coroutine_threadsafe` wraps each in a task.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # The rest runs on the event loop of the imports.

    async def _begin(self, request: ImportSpec, caller: Caller | None) -> ImportRecord:
        reservation = MemoryReservation(self._budget)
        source: Source | None = None
        steps: ImportSteps | None = None
        try:
            reservation.charge(read_source.MEMORY_BYTES)
            source = read_source.source_of(request.url, self.allowed)
            head = await source.open()
            found = await find_tensor(source, head, request.tensor, reservation, request.keys)
            if source.size and found.end > self._max_bytes:
                raise self._too_large()
            steps = ImportSteps(request, found, source.checksum, source.size, has_ranges=source.has_ranges)
            await self._run_in_disk_thread(lambda: steps.enter(self._store, self._tensors))
        except BaseException as problem:
            try:
                if steps is not None:
                    await self._run_in_disk_thread(steps.undo)
                if source is not None:
                    await self._close_source(source)
            finally:
                reservation.release()
                self._free.release()
            if isinstance(problem, SourceFailed):
                raise problem.as_error(request.url.shown) from None
            raise
        task = asyncio.get_running_loop().create_task(self._run_import(steps, source, reservation, caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return steps.record

    async def _close_source(self, source: Source) -> None:
        """Close a source. Exceptions are logged and suppressed."""
        try:
            await source.close()
        except Exception:
            logger.exception("the source of an import could not be closed")

    def _too_large(self) -> GatherError:
        return GatherError(
            "payload_too_large",
            f"the file is larger than the limit of {self._max_bytes} bytes",
            facts={"limit": "upload_bytes", "maximum": self._max_bytes},
        )

    async def _run_in_disk_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, and wait until it ends even if this coroutine is canceled repeatedly."""
        working = asyncio.get_running_loop().run_in_executor(self._disk, work)
        cancelled: asyncio.CancelledError | None = None
        while not working.done():
            try:
                await asyncio.wait((working,))
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            if cancelled is not None:
                forget_failure(working)
                raise cancelled
            return working.result()
        finally:
            del working, cancelled  # the traceback refers to this frame and would keep the work alive

    async def _run_import(
        self, steps: ImportSteps, source: Source, reservation: MemoryReservation, caller: Caller | None
    ) -> None:
        begun = time.monotonic()
        watching = asyncio.get_running_loop().create_task(self._watch(steps, asyncio.current_task()))
        try:
            try:
                await self._read(steps, source)
            except asyncio.CancelledError:
                await self._run_in_disk_thread(lambda: steps.stop(closing=self._closing))
            except (SourceFailed, GatherError) as problem:
                drop_tracebacks(problem)
                error = problem.as_error(steps.record.url) if isinstance(problem, SourceFailed) else problem
                await self._run_in_disk_thread(lambda: steps.fail(error))
            except Exception as problem:
                logger.exception("an import failed")
                drop_tracebacks(problem)
                await self._run_in_disk_thread(lambda: steps.fail(GatherError("internal", "the import failed")))
        finally:
            watching.cancel()
            try:
                await self._close_source(source)
            finally:
                reservation.release()
                self._free.release()
            record = steps.record
            self._count(record.state, steps.done)
            write_change(
                Change(
                    f"import {record.state}",
                    record.name,
                    None if record.metadata is None else record.metadata.version,
                    steps.done,
                    note=None if record.metadata is None else record.metadata.note or None,
                ),
                caller,
                url=record.url,
                id=record.id,
                code=None if record.error is None else record.error.code,
                seconds=round(time.monotonic() - begun, 1),
            )

    async def _read(self, steps: ImportSteps, source: Source) -> None:
        """Read the items (here or in the shards of a cluster), write them, and commit."""
        if not (steps.is_pulled and await self._let_shards_pull(steps, source)):
            await self._read_here(steps, source)
        await self._run_in_disk_thread(lambda: steps.commit(self._tensors))

    async def _let_shards_pull(self, steps: ImportSteps, source: Source) -> bool:
        """Have the shards read the items.

        Returns False if they cannot. In that case, the upload has been restarted so that the items can be read here.
        """
        try:
            while await self._run_in_disk_thread(steps.take_pulled):
                pass
            await source.read(steps.span[0], steps.span[0] + 1)  # raises if the source has changed since it was opened
        except GatherError as problem:
            if problem.code != "shard_unavailable":
                raise
            logger.warning("the shards do not read %s: %s", steps.record.url, problem.detail)
            await self._run_in_disk_thread(lambda: steps.restart(self._tensors))
            return False
        return True

    async def _read_here(self, steps: ImportSteps, source: Source) -> None:
        for span in (*steps.key_spans, steps.span):
            reading = read_source.pieces(source, *span)
            try:
                async for piece in reading:
                    await self._run_in_disk_thread(lambda: steps.take(piece))  # noqa: B023  (called before the next one comes)
            finally:
                await reading.aclose()

    async def _watch(self, steps: ImportSteps, task: asyncio.Task[Any] | None) -> None:
        """Store the progress of an import regularly, and stop the import if a request has canceled it."""
        told = -1
        while True:
            await asyncio.sleep(_LOOK_S)
            goes_on = True
            with suppress(OSError):
                done = steps.done
                if done == told:
                    goes_on = steps.should_continue()
                else:
                    goes_on = await asyncio.to_thread(steps.record_progress, done)
                told = done
            if not goes_on and task is not None:
                task.cancel()
                return

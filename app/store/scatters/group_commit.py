"""Group commit: scatters of one tensor, by one reference to it, that wait at the same time share one fsync.

The caller of the first scatter in the queue takes the tensor's lock, and carries out all scatters queued by then; when
they are done, the caller of the next one goes on with those queued meanwhile. No scatter is delayed to form a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from app.store.scatters.pending_scatter import PendingScatter, Scattered

MAX_BATCH: Final = 64
"""Scatters in a batch."""
MAX_BATCH_BYTES: Final = 1 << 24
"""Bytes of rows and updates in a batch of several."""

Take = Callable[[int], list[PendingScatter]]
Work = Callable[[str, Take], Callable[[], None] | None]


class ScatterQueues:
    """The queues of scatters, one for each reference by which any were asked for."""

    def __init__(self, work: Work) -> None:
        """`work` takes the reference to a tensor, and a function that takes scatters from its queue, up to a number.

        It finishes all that it has taken. An error that it raises is the result of those that it has not finished; the
        function that it returns is called once all other callers have been woken.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[PendingScatter]] = {}

    def enqueue(self, name: str, scatter: PendingScatter) -> None:
        """Queue a scatter; never blocks.

        A caller that is not the leader waits, without a thread if it likes, until the scatter's `wake` is called; then,
        as the leader does at once, it calls `complete`. It must, or all behind it wait for ever.
        """
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(scatter)
            scatter.is_leader = len(queue) == 1

    def complete(self, name: str, scatter: PendingScatter) -> Scattered:
        """The result, or the error; carries out a batch unless the scatter is done, which blocks."""
        if not scatter.done:
            self._run_batch(name, scatter)
        return scatter.result()

    def _run_batch(self, name: str, first: PendingScatter) -> None:
        """Carry out the first scatter of a queue, and others behind it."""
        queue = self._queues[name]
        taken = [first]

        def take(maximum: int) -> list[PendingScatter]:
            with self._lock:
                nbytes = first.nbytes
                for other in queue[1:maximum]:
                    nbytes += other.nbytes
                    if nbytes > MAX_BATCH_BYTES:
                        break
                    taken.append(other)
            return taken

        afterwards = None
        try:
            afterwards = self._work(name, take)
        except BaseException as error:  # noqa: BLE001  (`result` raises it, in each caller's thread)
            for member in taken:
                if not member.done:
                    member.finish(error)
        finally:
            with self._lock:
                del queue[: len(taken)]
                following = queue[0] if queue else None
                if following is None:
                    del self._queues[name]
            if following is not None:
                following.wake()
            for member in taken[1:]:
                member.wake()
        if afterwards is not None:
            afterwards()

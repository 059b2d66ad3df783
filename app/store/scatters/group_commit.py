"""Group commit: scatters queued for the same tensor, under the same reference, share one fsync.

The caller of the first scatter in the queue is the leader: it takes the tensor's lock and executes all scatters queued
so far. Then the caller of the next scatter does the same with those queued meanwhile. No scatter is delayed to form a
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from app.store.scatters.pending_scatter import PendingScatter, Scattered

MAX_BATCH: Final = 64
"""Maximum number of scatters in a batch."""
MAX_BATCH_BYTES: Final = 1 << 24
"""Maximum bytes of rows and updates in a batch of several scatters; a single scatter may be larger."""

Take = Callable[[int], list[PendingScatter]]
Work = Callable[[str, Take], Callable[[], None] | None]


class ScatterQueues:
    """The queues of scatters, one for each reference in use."""

    def __init__(self, work: Work) -> None:
        """`work(reference, take)` executes a batch; `take(n)` returns up to `n` scatters from the front of the queue.

        `work` must finish every scatter it takes. If it raises, the unfinished ones get that error as their result. It
        may return a function, which is called after all other callers have been woken.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[PendingScatter]] = {}

    def enqueue(self, name: str, scatter: PendingScatter) -> None:
        """Queue a scatter without blocking.

        The leader calls `complete` at once. Every other caller waits, without blocking a thread, until the scatter's
        `wake` is called, and then calls `complete`. A caller that never does so blocks all scatters behind its own.
        """
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(scatter)
            scatter.is_leader = len(queue) == 1

    def complete(self, name: str, scatter: PendingScatter) -> Scattered:
        """Return the scatter's result or raise its error. Unless it is done, executes a batch first, which blocks."""
        if not scatter.done:
            self._run_batch(name, scatter)
        return scatter.result()

    def _run_batch(self, name: str, first: PendingScatter) -> None:
        """Execute the first scatter of a queue together with others behind it."""
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

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


class QueuedScatter:
    """A scatter in the queue of its tensor, `name`. `is_leader` says that its caller is to call `complete` at once."""

    __slots__ = ("is_leader", "name", "scatter", "wake")

    def __init__(self, name: str, scatter: PendingScatter, wake: Callable[[], None]) -> None:
        self.name = name
        self.scatter = scatter
        self.wake = wake
        self.is_leader = False


class ScatterQueues:
    """The queues of scatters, one for each reference by which any were asked for."""

    def __init__(self, work: Work) -> None:
        """`work` takes the reference to a tensor, and a function that takes at most so many scatters from its queue.

        It finishes all that it has taken. An error that it raises is the result of those that it has not finished; the
        function that it returns is called once all other callers have been woken.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[QueuedScatter]] = {}

    def enqueue(self, name: str, scatter: PendingScatter, wake: Callable[[], None]) -> QueuedScatter:
        """Queue a scatter; never blocks.

        A caller that is not the leader waits, without a thread if it likes, until `wake` is called, from any thread;
        then, as the leader does at once, it calls `complete`. It must, or all behind it wait for ever.
        """
        queued = QueuedScatter(name, scatter, wake)
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(queued)
            queued.is_leader = len(queue) == 1
        return queued

    def complete(self, queued: QueuedScatter) -> Scattered:
        """The result, or the error; carries out a batch unless the scatter is done, which blocks."""
        if not queued.scatter.done:
            self._run_batch(queued)
        return queued.scatter.result()

    def _run_batch(self, queued: QueuedScatter) -> None:
        """Carry out the first scatter of a queue, and others behind it."""
        queue = self._queues[queued.name]
        taken = [queued]

        def take(maximum: int) -> list[PendingScatter]:
            with self._lock:
                nbytes = queued.scatter.nbytes
                for other in queue[1:maximum]:
                    nbytes += other.scatter.nbytes
                    if nbytes > MAX_BATCH_BYTES:
                        break
                    taken.append(other)
            return [member.scatter for member in taken]

        afterwards = None
        try:
            afterwards = self._work(queued.name, take)
        except BaseException as error:  # noqa: BLE001  (`result` raises it, in each caller's thread)
            for member in taken:
                if not member.scatter.done:
                    member.scatter.finish(error)
        finally:
            with self._lock:
                del queue[: len(taken)]
                following = queue[0] if queue else None
                if following is None:
                    del self._queues[queued.name]
            if following is not None:
                following.wake()
            for member in taken[1:]:
                member.wake()
        if afterwards is not None:
            afterwards()

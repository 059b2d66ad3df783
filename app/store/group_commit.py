"""Group commit: scatters of one tensor that wait at the same time share one fsync.

The caller of the first scatter in the queue takes the tensor's lock, and carries out all scatters queued by then; when
they are done, the caller of the next one goes on with those queued meanwhile. No scatter is delayed to form a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Final

from app.store.pending_scatter import PendingScatter

MAX_BATCH: Final = 64
"""Scatters in a batch."""
MAX_BATCH_BYTES: Final = 1 << 24
"""Bytes of rows and updates in a batch of several."""

Take = Callable[[int], list[PendingScatter]]
Work = Callable[[str, Take], Callable[[], None] | None]


class QueuedScatter:
    """A scatter in the queue of its tensor. `is_leader` says that its caller is to call `complete` at once."""

    __slots__ = ("is_leader", "name", "one", "wake")

    def __init__(self, name: str, scatter: PendingScatter, wake: Callable[[], None]) -> None:
        self.name = name
        self.one = scatter
        self.wake = wake
        self.is_leader = False


class ScatterQueues:
    """The queues of scatters, one for each tensor that has any."""

    def __init__(self, work: Work) -> None:
        """`work` takes the name of a tensor, and a function that takes at most so many scatters from its queue.

        It finishes all that it has taken. An error that it raises is the result of those that it has not finished; the
        function that it returns is called once all other callers have been woken.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[QueuedScatter]] = {}

    def run(self, name: str, one: PendingScatter) -> str:
        """The new ETag after `scatter`, or its error; blocks."""
        turn = Event()
        place = self.enqueue(name, one, turn.set)
        if not place.is_leader:
            turn.wait()
        return self.complete(place)

    def enqueue(self, name: str, one: PendingScatter, wake: Callable[[], None]) -> QueuedScatter:
        """Queue a scatter; never blocks.

        A caller that is not the leader waits, without a thread if it likes, until `wake` is called, from any thread;
        then, as the leader does at once, it calls `complete`. It must, or all behind it wait for ever.
        """
        place = QueuedScatter(name, one, wake)
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(place)
            place.is_leader = len(queue) == 1
        return place

    def complete(self, place: QueuedScatter) -> str:
        """The new ETag, or the error; carries out a batch unless the scatter is done, which blocks."""
        if not place.one.done:
            self._run_batch(place)
        return place.one.result()

    def _run_batch(self, place: QueuedScatter) -> None:
        """Carry out the first scatter of a queue, and others behind it."""
        queue = self._queues[place.name]
        taken = [place]

        def take(most: int) -> list[PendingScatter]:
            with self._lock:
                size = place.one.size
                for other in queue[1:most]:
                    size += other.one.size
                    if size > MAX_BATCH_BYTES:
                        break
                    taken.append(other)
            return [each.one for each in taken]

        afterwards = None
        try:
            afterwards = self._work(place.name, take)
        except BaseException as error:  # noqa: BLE001  (raised by `result`, in each caller's own thread)
            for each in taken:
                if not each.one.done:
                    each.one.finish(error)
        finally:
            with self._lock:
                del queue[: len(taken)]
                following = queue[0] if queue else None
                if following is None:
                    del self._queues[place.name]
            if following is not None:
                following.wake()
            for each in taken[1:]:
                each.wake()
        if afterwards is not None:
            afterwards()

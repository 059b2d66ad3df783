"""Scatters of one tensor that wait at the same time are carried out together, so that they share one wait for the disk.

The first of them takes the tensor's lock, and with it all that have come by then; when they are settled, the first of
those that have come meanwhile goes on. Nobody is kept waiting on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Final

from app.store.scatter_checkpoints import PendingScatter

MAX_BATCH: Final = 64
MAX_BATCH_BYTES: Final = 1 << 24

Take = Callable[[int], list[PendingScatter]]
Work = Callable[[str, Take], Callable[[], None] | None]


class QueuedScatter:
    """One scatter's place in the queue of its tensor. `first` says that its caller is to carry the queue on at once."""

    __slots__ = ("is_leader", "name", "one", "wake")

    def __init__(self, name: str, scatter: PendingScatter, wake: Callable[[], None]) -> None:
        self.name = name
        self.one = scatter
        self.wake = wake
        self.is_leader = False


class ScatterQueues:
    """The queues of scatters, one for each tensor that has some."""

    def __init__(self, work: Work) -> None:
        """`work` takes the name of a tensor and a function that gives the next at most so many scatters of it.

        It settles all it has taken. What it raises holds for those that it has not settled; what it returns is called
        once all others have been woken.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[QueuedScatter]] = {}

    def run(self, name: str, one: PendingScatter) -> str:
        """The ETag after `one`, or whatever error it meets; blocks."""
        turn = Event()
        place = self.enqueue(name, one, turn.set)
        if not place.is_leader:
            turn.wait()
        return self.complete(place)

    def enqueue(self, name: str, one: PendingScatter, wake: Callable[[], None]) -> QueuedScatter:
        """Queue a scatter; never blocks.

        Who is not the first waits, without a thread if need be, until `wake` is called, from any thread; then, as the
        first does at once, it calls `carry_on`. It must, or all behind it wait for ever.
        """
        place = QueuedScatter(name, one, wake)
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(place)
            place.is_leader = len(queue) == 1
        return place

    def complete(self, place: QueuedScatter) -> str:
        """The ETag, or whatever error it meets; carries the queue on unless it is settled, which blocks."""
        if not place.one.done:
            self._run_batch(place)
        return place.one.result()

    def _run_batch(self, place: QueuedScatter) -> None:
        """Carry out `place`, the first in its queue, and others behind it."""
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
        except BaseException as error:  # noqa: BLE001  (raised by `result`, in each one's own thread)
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

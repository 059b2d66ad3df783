"""Scatters of one tensor that wait at the same time are carried out together, so that they share one wait for the disk.

The first of them takes the tensor's lock, and with it all that have come by then; when they are settled, the first of
those that have come meanwhile goes on. Nobody is kept waiting on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Final

from app.store.changes import Waiting

MOST: Final = 64
MOST_BYTES: Final = 1 << 24

Take = Callable[[int], list[Waiting]]
Work = Callable[[str, Take], None]


class _Place:
    """One caller's place in a queue; `turn` is set when it is settled, or is the one to go on."""

    __slots__ = ("one", "turn")

    def __init__(self, one: Waiting) -> None:
        self.one = one
        self.turn = Event()


class Together:
    """The queues of scatters, one for each tensor that has some."""

    def __init__(self, work: Work) -> None:
        """`work` takes the name of a tensor and a function that gives the next at most so many scatters of it.

        It settles all it has taken. What it raises holds for those that it has not settled.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[_Place]] = {}

    def run(self, name: str, one: Waiting) -> str:
        """The ETag after `one`, or whatever error it meets."""
        place = _Place(one)
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(place)
            waits = len(queue) > 1
        if waits:
            place.turn.wait()
        if not one.settled:
            self._lead(name, queue, place)
        return one.result()

    def _lead(self, name: str, queue: list[_Place], place: _Place) -> None:
        """Carry out `place`, the first in the queue, and others behind it."""
        taken = [place]

        def take(most: int) -> list[Waiting]:
            with self._lock:
                size = place.one.size
                for other in queue[1:most]:
                    size += other.one.size
                    if size > MOST_BYTES:
                        break
                    taken.append(other)
            return [each.one for each in taken]

        try:
            self._work(name, take)
        except BaseException as error:  # noqa: BLE001  (raised by `result`, in each one's own thread)
            for each in taken:
                if not each.one.settled:
                    each.one.settle(error)
        finally:
            with self._lock:
                del queue[: len(taken)]
                if queue:
                    queue[0].turn.set()
                else:
                    del self._queues[name]
            for each in taken[1:]:
                each.turn.set()

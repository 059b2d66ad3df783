"""Scatters that are waiting to be executed: what they change, their queues, and their results.

Group commit: scatters that are queued for the same tensor under the same reference share one fsync. The caller of the
first scatter in the queue is the leader: it takes the tensor's lock and executes all scatters that are queued so far.
The caller of the next scatter then does the same with those that have been queued in the meantime. No scatter is
delayed to form a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.catalogue.conditions import ALWAYS, Conditions
from app.store.catalogue.catalogue_rows import RowCounts
from app.tensors.operator_signature import Reduction
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor


class Scattered(NamedTuple):
    """The result of a scatter: the ETag afterwards, and the number of the version that the scatter changed.

    `repeated` means that an earlier request with the same Idempotency-Key had already executed the scatter, so it was
    not executed again. `counts` is set for upserts and removals by key; a retried request gets the original counts.
    """

    etag: str
    version: int
    repeated: bool = False
    counts: RowCounts | None = None


class ContentReplaced(Exception):
    """The tensor has been replaced since the scatter was validated, so the scatter must be validated again."""


@dataclass(frozen=True, slots=True)
class ScatterChange:
    """A scatter that was validated against the content with the ID `content`: update i goes to row `rows[i]`.

    `updates` has `width` items per row. `key` is the Idempotency-Key, and `digest` identifies the request. If `rows`
    depends on the number of rows in a keyed table (for example, because of negative indices), `of_rows` is that number.
    """

    content: str
    rows: NDArray[np.int64]
    updates: Tensor
    width: int
    reduction: Reduction
    key: str | None = None
    digest: str = ""
    of_rows: int | None = None


@dataclass(frozen=True, slots=True)
class KeyedChange:
    """An upsert into the table whose content has the ID `content`, or a removal of rows if `updates` is None.

    `keys` is one-dimensional and has the type of the table's keys. `updates` has `width` items (a whole row) for each
    key. An upsert appends a row of zeros for each new key, and then combines each key's row with its update using
    `reduction`. A removal moves the last rows into the gaps, and counts missing keys. `key` is the Idempotency-Key, and
    `digest` identifies the request.
    """

    content: str
    keys: Tensor
    updates: Tensor | None = None
    width: int = 0
    reduction: Reduction = "none"
    key: str | None = None
    digest: str = ""


class PendingScatter:
    """A scatter that is waiting to be executed: a future whose result is a `Scattered` or an error.

    `wake` is called when it is the scatter's turn (see `ScatterQueues`), from any thread. `is_leader` is set if its
    turn comes as soon as it is queued.
    """

    __slots__ = ("_outcome", "change", "conditions", "done", "is_leader", "wake")

    def __init__(
        self,
        change: ScatterChange | KeyedChange,
        conditions: Conditions = ALWAYS,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.change = change
        self.conditions = conditions
        self.wake = wake
        self.done = self.is_leader = False
        self._outcome: Scattered | BaseException | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes of the updates and their row numbers or keys. Strings are counted with their framing."""
        change = self.change
        named = change.rows.nbytes if isinstance(change, ScatterChange) else _nbytes(change.keys)
        return named + (0 if change.updates is None else _nbytes(change.updates))

    @property
    def scattered(self) -> Scattered | None:
        """The result, or None if there is no result yet or there was an error."""
        return self._outcome if self.done and isinstance(self._outcome, Scattered) else None

    def finish(self, outcome: Scattered | BaseException) -> None:
        """Set the result or the error. A result must already be durable."""
        self._outcome = outcome
        self.done = True

    def result(self) -> Scattered:
        """Return the result, or raise the error."""
        # avoid a reference cycle, because an error's traceback refers to this frame
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        return outcome


def _nbytes(tensor: Tensor) -> int:
    return tensor.array.nbytes + (tensor.nbytes if isinstance(tensor, PackedStrings) else 0)


MAX_BATCH: Final = 64
"""Maximum number of scatters in a batch."""
MAX_BATCH_BYTES: Final = 1 << 24
"""Maximum bytes of rows and updates in a batch of several scatters. A single scatter may be larger."""

Take = Callable[[int], list[PendingScatter]]
Work = Callable[[str, Take], Callable[[], None] | None]


class ScatterQueues:
    """The scatter queues, one for each reference that is in use."""

    def __init__(self, work: Work) -> None:
        """Start without queues. `work(reference, take)` executes a batch.

        `take(n)` returns up to `n` scatters from the front of the queue. `work` must finish every scatter that it
        takes. If `work` raises an error, that error becomes the result of the unfinished scatters. `work` may return a
        function, which is called after all other callers have been woken.
        """
        self._work = work
        self._lock = Lock()
        self._queues: dict[str, list[PendingScatter]] = {}

    def enqueue(self, name: str, scatter: PendingScatter) -> None:
        """Queue a scatter without blocking.

        The leader then calls `complete` immediately. Every other caller waits, without blocking a thread, until the
        scatter's `wake` is called, and then calls `complete`. A caller that never does so blocks all scatters queued
        after its own.
        """
        with self._lock:
            queue = self._queues.setdefault(name, [])
            queue.append(scatter)
            scatter.is_leader = len(queue) == 1

    def complete(self, name: str, scatter: PendingScatter) -> Scattered:
        """Return the scatter's result, or raise its error.

        If the scatter is not done yet, this method first executes a batch, which blocks.
        """
        if not scatter.done:
            self._run_batch(name, scatter)
        return scatter.result()

    def _run_batch(self, name: str, first: PendingScatter) -> None:
        """Execute the first scatter of a queue together with others queued after it."""
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

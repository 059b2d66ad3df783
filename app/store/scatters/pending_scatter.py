"""A scatter on its way to the disk: what it changes, the queue in which it waits, and its result.

Group commit: scatters that are queued for the same tensor, under the same reference, share one fsync. The caller of the
first scatter in the queue is the leader, which takes the tensor's lock and executes all scatters queued so far. Then
the caller of the next scatter does the same with those queued meanwhile. No scatter is delayed to form a batch.
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
    """The result of a scatter: the content's ETag afterwards, and the number of the version that the scatter changed.

    `repeated` means that the scatter was already executed for an earlier request with the same Idempotency-Key, and was
    not executed again. `counts` is set for upserts and removals by key; a retried request gets the original counts.
    """

    etag: str
    version: int
    repeated: bool = False
    counts: RowCounts | None = None


class ContentReplaced(Exception):
    """The tensor has been replaced since the scatter was validated. Validate the scatter again."""


@dataclass(frozen=True, slots=True)
class ScatterChange:
    """A scatter that was validated against the content with the ID `content`: update i goes to row `rows[i]`.

    `updates` has `width` items per row. `key` is the Idempotency-Key, and `digest` identifies the request. If `rows`
    depends on the number of rows in a keyed table, as negative indices do, `of_rows` is that number.
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

    `keys` has one dimension and the type of the table's keys. `updates` has `width` items, which is a whole row, for
    each key. An upsert combines the rows of existing keys with their updates using `reduction`, and appends a row,
    which starts as zeros, for each new key. A removal moves the last rows into the gaps, and counts missing keys. `key`
    is the Idempotency-Key, and `digest` identifies the request.
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

    `wake` is called, from any thread, when it is the scatter's turn (see `ScatterQueues`). `is_leader` is set if its
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
        """The size in bytes of the row numbers or keys and of the updates. Strings count with their frames."""
        change = self.change
        named = change.rows.nbytes if isinstance(change, ScatterChange) else _nbytes(change.keys)
        return named + (0 if change.updates is None else _nbytes(change.updates))

    @property
    def scattered(self) -> Scattered | None:
        """The result, or None if there is no result yet or there was an error."""
        return self._outcome if self.done and isinstance(self._outcome, Scattered) else None

    def finish(self, outcome: Scattered | BaseException) -> None:
        """Set the result, which must be durable, or the error."""
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
    """The queues of scatters, one for each reference that is in use."""

    def __init__(self, work: Work) -> None:
        """Start without queues. `work(reference, take)` executes a batch.

        `take(n)` returns up to `n` scatters from the front of the queue. `work` must finish every scatter that it
        takes. If `work` raises an error, the unfinished scatters get that error as their result. It may return a
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

        Unless the scatter is done, this first executes a batch, which blocks.
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

"""Versions replicated on several machines: the primitives with which a shard keeps its copies in sync with the others.

A version is replicated from its first `set_epoch` on. One machine, the primary of an epoch, creates records. Each copy
durably logs the records before any copy applies them. Records that have been logged but not applied are the log's tail.
Readers do not see these records, and their Idempotency-Keys do not count as used. They are not applied when the version
is opened or at startup, and no checkpoint removes them. `commit_to` applies the tail; `drop_tail` removes it.

    with store.replicated.open(tensor) as content:     # while holding the tensor's lock
        content.set_epoch(7)
        content.append_frames(frames)                  # durable now
        content.commit_to(41)                          # visible to readers now

Together, a sequence and an epoch identify one record forever. The primary therefore logs a batch durably before it
sends the batch to others. It stops creating records in an epoch when the content has seen a higher epoch, and creates
none while its log has a tail.

A scatter to a replicated version goes through `ReplicatedContents.replication`, which the shard sets (see
`Replication`). Until then, scatters to replicated versions are refused. The tensor's lock is released while a batch is
in flight to other machines. Otherwise, two machines that replicate to each other could deadlock, because several
tensors share one lock.

After a power loss, a copy may be unsettled (see `log_replay`); it must not be read until `is_settled`. After any
startup, a copy may be outdated because its disk was restored to an earlier state. It is known to be up to date only
after it has caught up with its primary (`is_confirmed`).

Changes by key are replicated in the same way. If a copy does not have enough room for a change's rows and keys, it
grows before it logs the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import mode_of
from app.store.files.tensor_file import HeaderWord, sequence_in
from app.store.files.write_uploaded_tensor import Upload
from app.store.idempotency import IdempotencyKeys
from app.store.processes.store_locks import StoreLocks
from app.store.publish_and_remove_versions import CarriedKey, CopiedContent, VersionChanges
from app.store.scatters.key_changes import TableFull
from app.store.scatters.log_frames import BrokenLog, encode
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.pending_scatter import PendingScatter, Scattered
from app.store.scatters.replicated_copy import CopyState, ReplicatedCopy
from app.store.scatters.scatter_checkpoints import Checkpoints
from app.store.scatters.scatter_execution import ScatterExecutor
from app.store.scatters.table_growth import TableGrowth
from app.store.scatters.writable_tensor import WritableTensor
from app.store.store_errors import damaged, storage_errors

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that the primary of `epoch` has logged after record number `after`, whose epoch is `after_epoch`.

    They have the sequences `after` + 1 to `last` and share one frame.
    """

    epoch: int
    after: int
    after_epoch: int
    last: int
    frame: bytes


class Replication(Protocol):
    """The interface that a shard implements for scatters to replicated versions.

    `lead` and `replicate` are called inside `ReplicatedContents.exclusive` but without the tensor's lock, and may
    block. They must raise nothing but GatherError; an OSError would be mistaken for a disk error.
    """

    def lead(self, tensor: str) -> int:
        """Return the epoch in which this machine is the primary.

        By the time this method returns, the content has seen this epoch and no higher one, and any tail has been
        committed and applied. Raises precondition_failed if another machine is the primary, and shard_unavailable.
        """
        raise NotImplementedError

    def replicate(self, tensor: str, batch: Batch) -> None:
        """Wait until a batch that is durable here has been committed. The store applies it after that.

        If this raises an error, the batch stays in the tail and its callers get the error.
        """
        raise NotImplementedError

    def keeps_log(self, tensor: str) -> bool:
        """Return whether other machines still need records from this log. Called while holding the tensor's lock."""
        raise NotImplementedError


@dataclass
class ReplicatedContents:
    """The replicated versions in a store. Any number of threads and processes may use them.

    All methods do blocking disk I/O. They take a tensor's name, and may raise tensor_not_found, tensor_damaged and
    insufficient_storage.
    """

    _locked: Callable[[str], AbstractContextManager[Row]]
    """A function that takes a tensor's lock and yields the tensor's row."""
    _locks: StoreLocks
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _checkpoints: Checkpoints
    _executor: ScatterExecutor
    _versions: VersionChanges
    _growth: TableGrowth
    _run_in_background: Callable[[Callable[[], None]], None]
    replication: Replication | None = None

    def __post_init__(self) -> None:
        self._checkpoints.keeps_log = lambda tensor: self.replication is not None and self.replication.keeps_log(tensor)

    @contextmanager
    def open(self, tensor: str) -> Iterator[ReplicatedCopy]:
        """Open the content of a tensor while holding its lock. Afterwards, checkpoint a long log in the background."""
        with storage_errors():
            with self._locked(tensor) as row, self._open(row) as (content, later):
                yield content
            for checkpoint in later:
                self._run_in_background(checkpoint)

    def change(
        self,
        tensor: str,
        work: Callable[[ReplicatedCopy], T],
        refused: Callable[[GatherError], T] | None = None,
        growing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> T:
        """Return `work(content)`. It is called as if inside `open`.

        If `work` raises TableFull, the table grows inside the context `growing()`, and `work` is called again. If the
        table cannot grow, this method returns `refused(error)` or, if `refused` is None, raises the error.
        """
        with storage_errors():
            later: list[Callable[[], None]] = []
            with self._locked(tensor) as present:
                row = present
                while True:
                    with self._open(row) as (content, later):
                        try:
                            found = work(content)
                            break
                        except TableFull as full:
                            try:
                                with growing():
                                    row = self._growth.grow(content.writable, full)
                            except GatherError as problem:
                                if refused is None:
                                    raise
                                found = refused(problem)
                                break
            for checkpoint in later:
                self._run_in_background(checkpoint)
            return found

    @contextmanager
    def _open(self, row: Row) -> Iterator[tuple[ReplicatedCopy, list[Callable[[], None]]]]:
        """Open the content of a row while holding its tensor's lock.

        Yields the content and a list. If a checkpoint is due, the list will contain it; run it after releasing the
        lock.
        """
        later: list[Callable[[], None]] = []
        with self._logs.open(row) as writable:
            try:
                yield self._content(row, writable), later
                if self._index.find(row.reference) is row:  # unless the table has grown
                    checkpoint = self._checkpoints.begin_if_due(row, writable)
                    later += [] if checkpoint is None else [checkpoint]
            except BrokenLog:
                writable.mark_damaged()
                raise damaged(row.name, "its log is damaged") from None

    @cached_property
    def session(self) -> int:
        """The current session; see `app.store.processes.directory_lock`. The store must be open."""
        return self._logs.session()

    def is_confirmed(self, words: Sequence[int]) -> bool:
        """Return whether content with these header words is known to be up to date; see `ReplicatedCopy.confirm`."""
        return words[HeaderWord.CONFIRMED] == self.session

    @contextmanager
    def exclusive(self, tensor: str) -> Iterator[None]:
        """Keep others from creating records of a tensor. Blocks.

        Take the tensor's lock inside this context, never around it. Inside the context, no other batch is in flight.
        Use it for scatters, for taking over as primary, and for letting a copy join.
        """
        while True:
            with self._locked(tensor) as row:
                pass
            with self._locks.primary(row.content):
                found = self._index.find(tensor)
                if found is not None and found.content == row.content:
                    if mode_of(self._logs.tensor_folder / found.file) is not None:
                        yield
                        return
                    if self._index.find(tensor) is found:  # unless the table has grown into new files meanwhile
                        raise damaged(tensor, "its file is missing")

    def adopt(
        self, upload: Upload, copied: CopiedContent, judge: Callable[[CopyState | None], bool] = lambda _: True
    ) -> Row | None:
        """Durably publish a finished upload as the only version of its tensor, replacing any existing versions.

        While the tensor's lock is held, `judge` is called with the state of the current version, or with None if there
        is none or it is damaged. If `judge` returns False, the upload is abandoned and the result is None. The upload
        is also abandoned if this method raises insufficient_storage.
        """
        return self._versions.adopt(upload, copied, lambda row: judge(self._state_of(row)))

    def _state_of(self, row: Row | None) -> CopyState | None:
        """Return the state of a tensor's content, or None if it is missing or damaged.

        Call this while holding the tensor's lock.
        """
        if row is None:
            return None
        try:
            with self._logs.open(row) as writable:
                return self._content(row, writable).state()
        except GatherError as problem:
            if problem.code != "tensor_damaged":
                raise
            return None

    def _content(self, row: Row, writable: WritableTensor) -> ReplicatedCopy:
        return ReplicatedCopy(row, writable, self._keys, self._checkpoints, self.session)

    def keys(self, tensor: str) -> list[CarriedKey]:
        """Return the unexpired Idempotency-Keys of all applied records."""
        with self.open(tensor) as content:
            logged = [*content.writable.log.keys.values()]
        # Read the catalogue without holding the lock. This is safe because keys are stored there before they leave the
        # log.
        with storage_errors():
            found = self._keys.all_of(tensor, logged)
        now = self._keys.clock.now()
        return [
            CarriedKey(
                one.key, one.digest, sequence_in(one.etag), max(0, now - one.clock), one.counts and (*one.counts,)
            )
            for one in found
        ]

    def execute(self, tensor: str, batch: Sequence[PendingScatter]) -> None:
        """Execute scatters of a tensor, finishing each one when its batch has been committed.

        Errors from `Replication` propagate. In that case, the unfinished scatters may be executed later, or never.
        """
        replication = self.replication
        if replication is None:
            raise GatherError("shard_unavailable", f"{tensor!r} is replicated, and this shard has not joined it yet",
                              retry_after=1)  # fmt: skip
        left = list(batch)
        with self.exclusive(tensor):
            while left:
                with _outcome_unknown(tensor):  # an earlier attempt may have left these scatters in the tail
                    epoch = replication.lead(tensor)
                made, outcomes = self._log_batch(tensor, epoch, left)
                if made is not None:
                    with _outcome_unknown(tensor):
                        replication.replicate(tensor, made)
                        with self.open(tensor) as content:
                            _commit(content, made)
                for pending, outcome in outcomes:
                    pending.finish(outcome)
                del left[: len(outcomes)]

    def _log_batch(
        self, tensor: str, epoch: int, batch: Sequence[PendingScatter]
    ) -> tuple[Batch | None, list[tuple[PendingScatter, Scattered | Exception]]]:
        """Log the scatters at the beginning of a batch that can be logged together.

        Returns two values: the logged batch, or None if nothing changes; and the outcomes that become valid when the
        batch is committed. If the table must grow for the first scatter but cannot, only that scatter is refused.
        """

        def log(content: ReplicatedCopy) -> tuple[Batch | None, list[tuple[PendingScatter, Scattered | Exception]]]:
            state = content.state()
            if state.epoch != epoch or state.tail:
                raise GatherError("shard_unavailable", f"the primary of {tensor!r} is being changed", retry_after=1)
            content.settle()
            records, outcomes = self._executor.collect(content.writable, tensor, batch)
            if not records:
                return None, outcomes
            content.log_records(records)
            return Batch(epoch, state.last, state.last_epoch, records[-1].entry.sequence, encode(records)), outcomes

        def refused(problem: GatherError) -> tuple[Batch | None, list[tuple[PendingScatter, Scattered | Exception]]]:
            return None, [(batch[0], problem)]

        return self.change(tensor, log, refused)


def _commit(content: ReplicatedCopy, batch: Batch) -> None:
    """Apply a committed batch, unless it has already been applied because another primary ordered it."""
    state = content.state()
    if state.applied < batch.last:
        if state.last < batch.last or state.tail[batch.last - state.applied - 1] != batch.epoch:
            raise GatherError(
                "shard_unavailable", f"the log of {content.row.name!r} was replaced meanwhile", retry_after=1
            )
        content.commit_to(batch.last)


@contextmanager
def _outcome_unknown(tensor: str) -> Iterator[None]:
    """Convert insufficient_storage to shard_unavailable, because the scatter may have been executed.

    insufficient_storage would tell the client that it was not.
    """
    try:
        yield
    except GatherError as problem:
        if problem.code != "insufficient_storage":
            raise
        detail = f"{problem.detail}; whether the scatter to {tensor!r} is made is not known"
        raise GatherError("shard_unavailable", detail, retry_after=1) from None

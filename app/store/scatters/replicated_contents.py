"""Contents that several machines have: the primitives by which a shard keeps its copy equal to that of the others.

A content is replicated from the first `set_epoch` on. One machine, the primary of an epoch, makes records; each copy
has them in its log, durably, before any copy applies them. What is logged and not applied is the log's tail: readers do
not see it, its Idempotency-Keys are not known, it is never applied by opening the content or by a start, and no
checkpoint takes it away. `commit_to` applies it, `drop_tail` removes it.

    with store.replicated.open(tensor) as content:     # within the tensor's lock
        content.set_epoch(7)
        content.append_frames(frames)                  # durable now
        content.commit_to(41)                          # seen by readers now

A sequence and an epoch name one record for ever. So the primary logs a batch durably before it gives it to others; it
makes records in an epoch only while the content has seen no higher one; and it makes none while its log has a tail.

A scatter to a replicated content goes through `ReplicatedContents.replication`, which the shard sets (see
`Replication`); without it such scatters are refused. While a batch is on its way to others the tensor's lock is free:
otherwise two machines, each with a batch for the other, would wait for one another, since tensors share locks.

After a loss of power a copy may be unsettled: see `session_replay`. It is not to be read until `is_settled`. After any
start it may be an older copy, on a disk that was put back to an earlier state: a primary says when it `is_confirmed`.

Changes by key go the same way. A copy that has no room for their rows and keys grows, by itself, before it logs them.
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
    """Records that the primary of `epoch` has logged after the record `after`, whose epoch is `after_epoch`.

    They have the sequences `after` + 1 to `last` and stand in one frame.
    """

    epoch: int
    after: int
    after_epoch: int
    last: int
    frame: bytes


class Replication(Protocol):
    """What a shard does for the scatters of replicated contents.

    `lead` and `replicate` are called within `ReplicatedContents.exclusive`, without the tensor's lock, and may block.
    They raise GatherError alone: an OSError would be taken for one of the disk.
    """

    def lead(self, tensor: str) -> int:
        """The epoch in which this machine is the primary. The content has seen it and no higher one, and has no tail.

        To that end the tail, if there is one, is made committed and applied first. Raises precondition_failed if
        another machine is the primary, and shard_unavailable.
        """
        raise NotImplementedError

    def replicate(self, tensor: str, batch: Batch) -> None:
        """Return once a batch, which is durable here, is committed; the store applies it then.

        If this raises, the batch stays in the tail, and its callers get the error.
        """
        raise NotImplementedError

    def keeps_log(self, tensor: str) -> bool:
        """Whether other machines are to get records from the log here. Called within the tensor's lock."""
        raise NotImplementedError


@dataclass
class ReplicatedContents:
    """The replicated contents of a store, for any number of threads and processes. All methods block on the disk.

    They take the name of a tensor, and raise tensor_not_found, tensor_damaged and insufficient_storage.
    """

    _locked: Callable[[str], AbstractContextManager[Row]]
    """Gives a tensor's row within its lock."""
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
        """A content within its tensor's lock. A long log is checkpointed after that, in the background."""
        with storage_errors():
            with self._locked(tensor) as row, self._opened(row) as (content, later):
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
        """What `work` returns of a content, as within `open`; where it raises TableFull it is done again, on a larger
        table, which is written within `growing`. If the table cannot grow, what `refused` makes of the error, which is
        raised without it.
        """
        with storage_errors():
            later: list[Callable[[], None]] = []
            with self._locked(tensor) as present:
                row = present
                while True:
                    with self._opened(row) as (content, later):
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
    def _opened(self, row: Row) -> Iterator[tuple[ReplicatedCopy, list[Callable[[], None]]]]:
        """A content within its tensor's lock, and a list that gets the checkpoint to be run without the lock."""
        later: list[Callable[[], None]] = []
        with self._logs.open(row) as writable:
            try:
                yield self._content(row, writable), later
                if self._index.find(row.reference) is row:  # it has not grown
                    checkpoint = self._checkpoints.begin_if_due(row, writable)
                    later += [] if checkpoint is None else [checkpoint]
            except BrokenLog:
                writable.mark_damaged()
                raise damaged(row.name, "its log is damaged") from None

    @cached_property
    def session(self) -> int:
        """The present session, see `processes.session`. The store is open."""
        return self._logs.session()

    def is_confirmed(self, words: Sequence[int]) -> bool:
        """Whether the content with these words is known not to be an older copy: see `ReplicatedCopy.confirm`."""
        return words[HeaderWord.CONFIRMED] == self.session

    @contextmanager
    def exclusive(self, tensor: str) -> Iterator[None]:
        """Keep others from making records of a tensor; its lock is taken within this, never around it. Blocks.

        For scatters, for taking over as a primary, and for letting a copy join: no batch is under way meanwhile.
        """
        while True:
            with self._locked(tensor) as row:
                pass
            with self._locks.primary(row.content):
                found = self._index.find(tensor)
                if found is not None and found.content == row.content:
                    if mode_of(self._logs.tensor_folder / found.file) is None:
                        raise damaged(tensor, "its file is missing")
                    yield
                    return

    def adopt(
        self, upload: Upload, copied: CopiedContent, judge: Callable[[CopyState | None], bool] = lambda _: True
    ) -> Row | None:
        """Publish a finished upload as the content of its tensor, durably, in the place of any that it has.

        `judge` is asked within the tensor's lock, with the state of the content that is there, None if there is none or
        it is damaged. Where it says no, or this raises insufficient_storage, the upload is abandoned.
        """
        return self._versions.adopt(upload, copied, lambda row: judge(self._state_of(row)))

    def _state_of(self, row: Row | None) -> CopyState | None:
        """The state of a content within its tensor's lock."""
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
        """The Idempotency-Keys of all that is applied, but for those that have expired."""
        with self.open(tensor) as content:
            logged = [*content.writable.log.keys.values()]
        with storage_errors():  # those of the catalogue without the lock: a key that leaves the log is there before
            found = self._keys.all_of(tensor, logged)
        now = self._keys.clock.now()
        return [
            CarriedKey(
                one.key, one.digest, sequence_in(one.etag), max(0, now - one.clock), one.counts and (*one.counts,)
            )
            for one in found
        ]

    def execute(self, tensor: str, batch: Sequence[PendingScatter]) -> None:
        """Carry out scatters of a tensor, which finish as their batches are committed.

        Raises what `Replication` raises: those that are not finished may be carried out later, or never.
        """
        replication = self.replication
        if replication is None:
            raise GatherError("shard_unavailable", f"{tensor!r} is replicated, and its shard does not take part yet",
                              retry_after=1)  # fmt: skip
        left = list(batch)
        with self.exclusive(tensor):
            while left:
                with _perhaps_made(tensor):  # a tail may have what was asked for before
                    epoch = replication.lead(tensor)
                made, outcomes = self._log_batch(tensor, epoch, left)
                if made is not None:
                    with _perhaps_made(tensor):
                        replication.replicate(tensor, made)
                        with self.open(tensor) as content:
                            _commit(content, made)
                for pending, outcome in outcomes:
                    pending.finish(outcome)
                del left[: len(outcomes)]

    def _log_batch(
        self, tensor: str, epoch: int, batch: Sequence[PendingScatter]
    ) -> tuple[Batch | None, list[tuple[PendingScatter, Scattered | Exception]]]:
        """Log the first scatters of a batch, if they change anything; what they are answered once it is committed.

        The first one alone is refused if the table has to grow for it and cannot.
        """

        def log(content: ReplicatedCopy) -> tuple[Batch | None, list[tuple[PendingScatter, Scattered | Exception]]]:
            state = content.state()
            if state.epoch != epoch or state.tail:
                raise GatherError("shard_unavailable", f"the primary of {tensor!r} changes", retry_after=1)
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
    """Apply a batch that is committed, unless another primary has told to do so meanwhile."""
    state = content.state()
    if state.applied < batch.last:
        if state.last < batch.last or state.tail[batch.last - state.applied - 1] != batch.epoch:
            raise GatherError(
                "shard_unavailable", f"the log of {content.row.name!r} was replaced meanwhile", retry_after=1
            )
        content.commit_to(batch.last)


@contextmanager
def _perhaps_made(tensor: str) -> Iterator[None]:
    """Have an error of the disk say that a scatter may be made: insufficient_storage says that it is not."""
    try:
        yield
    except GatherError as problem:
        if problem.code != "insufficient_storage":
            raise
        detail = f"{problem.detail}; whether the scatter to {tensor!r} is made is not known"
        raise GatherError("shard_unavailable", detail, retry_after=1) from None

"""The logs and rows of replicated ranges in this shard's store, using the terms of `app.cluster.replication`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import BoundedSemaphore
from typing import Final, NamedTuple

from app.cluster.replication.replica import (
    Append,
    AppendAnswer,
    Appended,
    CopyOrder,
    ReplicaState,
    is_stale,
    may_adopt,
    on_append,
)
from app.cluster.shard.read_gate import GatedStore
from app.errors import GatherError
from app.store.files.mapped_tensor import MappedContent
from app.store.files.tensor_file import HeaderWord, is_settled
from app.store.files.write_uploaded_tensor import Upload
from app.store.publish_and_remove_versions import CarriedKey, CopiedContent
from app.store.scatters.log_frames import decode, frames_in
from app.store.scatters.replicated_copy import CopyState, ReplicatedCopy

GROWTHS: Final = 4
"""Maximum number of tables that may grow at the same time for incoming records. The other threads remain free for other
ranges.
"""
_NOT_HERE: Final = ("tensor_not_found", "tensor_damaged")


class Words(NamedTuple):
    """The epoch that a log has seen, and its applied and durable sequences.

    Reads require both `is_settled` and `is_confirmed`. The latter says that, since the startup, the primary has
    confirmed the state.
    """

    epoch: int
    applied: int
    logged: int
    is_settled: bool = True
    is_confirmed: bool = True


class RangeLog:
    """The logs of the ranges in `store`, which must be open. Methods block, and may raise insufficient_storage."""

    def __init__(self, store: GatedStore) -> None:
        self._store = store
        self._growths = BoundedSemaphore(GROWTHS)

    def exclusive(self, tensor: str) -> AbstractContextManager[None]:
        """Lock a range against other primaries. Raises tensor_not_found and tensor_damaged."""
        return self._store.replicated.exclusive(tensor)

    def state(self, tensor: str) -> ReplicaState | None:
        """Return the state of a log, or None if the rows are missing or damaged."""
        try:
            with self._store.replicated.open(tensor) as content:
                return _state_of(content)
        except GatherError as problem:
            if problem.code not in _NOT_HERE:
                raise
            return None

    def words(self, tensor: str) -> Words | None:
        """Return the state from the file's header, without reading the log.

        Returns None if the rows are missing or damaged.
        """
        try:
            words = self._store.ungated_content(tensor).words
        except GatherError as problem:
            if problem.code not in _NOT_HERE:
                raise
            return None
        epoch, applied = words[HeaderWord.EPOCH], words[HeaderWord.VERSION] >> 1
        is_confirmed = self._store.replicated.is_confirmed(words)
        return Words(epoch, applied, words[HeaderWord.LOGGED], is_settled(words), is_confirmed)

    def quick_state(self, tensor: str) -> ReplicaState | None:
        """Return the same as `state`, but skip reading the log if the file's header says that there is no tail.

        If a process died before it recorded a log entry in the header, the next process that opens the log finds that
        entry.
        """
        words = self.words(tensor)
        if words is None or words.logged > words.applied:
            return self.state(tensor)
        return ReplicaState(words.epoch, words.applied)

    def is_replicated(self, tensor: str) -> bool:
        """Return whether a range's scatters are replicated. They are, from the first epoch on."""
        words = self.words(tensor)
        return words is not None and words.epoch > 0

    def content(self, tensor: str) -> MappedContent:
        """Return the rows, even if they may not be served. Raises tensor_not_found and tensor_damaged."""
        return self._store.ungated_content(tensor)

    def raise_epoch(self, tensor: str, epoch: int) -> None:
        """Durably set the log's epoch to `epoch` if that is higher. Raises tensor_not_found and tensor_damaged."""
        with self._store.replicated.open(tensor) as content:
            if content.state().epoch < epoch:
                content.set_epoch(epoch)

    def commit(self, tensor: str, epoch: int, end: int) -> ReplicaState | None:
        """Apply the records up to `end`, set the log's epoch to `epoch`, and return the log's state.

        Returns None if the log has seen a higher epoch or does not have all of these records. Raises tensor_not_found
        and tensor_damaged.
        """
        with self._store.replicated.open(tensor) as content:
            state = content.state()
            if state.epoch > epoch or state.last < end:
                return None
            if state.epoch < epoch:
                content.set_epoch(epoch)
            content.commit_to(end)
            found = _state_of(content)
            if not found.tail:
                content.settle()
            return found

    def records_after(self, tensor: str, sequence: int) -> tuple[bytes | None, tuple[int, ...]]:
        """Return frames with the records after a sequence, up to about MOST_BYTES, and the epochs of those records.

        The frames are None if the records are no longer in the log. Raises tensor_not_found and tensor_damaged.
        """
        with self._store.replicated.open(tensor) as content:
            frames = content.frames_after(sequence)
        if frames is None:
            return None, ()
        return frames, tuple(record.entry.epoch for frame in frames_in(frames) for record in decode(frame))

    def keys(self, tensor: str) -> list[CarriedKey]:
        """Return the Idempotency-Keys of all applied records. Raises tensor_not_found and tensor_damaged."""
        return self._store.replicated.keys(tensor)

    def append(self, tensor: str, message: Append, frames: bytes) -> AppendAnswer:
        """Durably carry out a primary's message to a replica, and return the response.

        Raises overloaded if the table has to grow while GROWTHS others are growing. The primary then retries.
        """
        words = self.words(tensor)
        if words is None:
            return on_append(None, message).answer
        if is_stale(words.epoch, message.epoch):
            return on_append(ReplicaState(words.epoch, words.applied), message).answer

        def follow(content: ReplicatedCopy) -> AppendAnswer:
            plan = on_append(_state_of(content), message)
            if plan.epoch is not None:
                content.set_epoch(plan.epoch)
            if plan.truncate_after is not None:
                content.drop_tail(plan.truncate_after)
            if plan.commit_to is not None:
                # Commit first: after a power failure, a table may be too inconsistent to grow until its tail has been
                # applied.
                content.commit_to(plan.commit_to)
            if plan.new:
                content.append_frames(frames)
                if plan.commit_to is not None:
                    content.commit_to(plan.commit_to)
            state = content.state()
            if isinstance(plan.answer, Appended) and state.applied >= message.commit:
                content.confirm()
                if message.commit == message.last == state.last:
                    content.settle()
            return plan.answer

        return self._store.replicated.change(tensor, follow, growing=self._growth_place)

    @contextmanager
    def _growth_place(self) -> Iterator[None]:
        """Occupy one of the GROWTHS slots while a table grows. Raises overloaded if none is free."""
        if not self._growths.acquire(blocking=False):
            raise GatherError("overloaded", f"{GROWTHS} other ranges grow here now", retry_after=1)
        try:
            yield
        finally:
            self._growths.release()

    def adopt(
        self, tensor: str, upload: Upload, sequence: int, order: CopyOrder, keys: Sequence[CarriedKey], sha256: str
    ) -> bool:
        """Publish a copy of the rows at `sequence`, with the keys of the records up to that sequence.

        Returns False if the copy is no longer needed.
        """
        copied = CopiedContent(sequence, order.epoch, keys=keys, sha256=sha256)

        def judge(found: CopyState | None) -> bool:
            return may_adopt(None if found is None else _replica_state(found), sequence, order)

        return self._store.replicated.adopt(upload, copied, judge) is not None


def _state_of(content: ReplicatedCopy) -> ReplicaState:
    return _replica_state(content.state())


def _replica_state(found: CopyState) -> ReplicaState:
    """Convert the store's description of a copy's state to the terms of the replication rules."""
    return ReplicaState(found.epoch, found.applied, found.tail, found.applied_epoch)

"""Scatters of a store's tensors: the redo log, recovery and checkpoints.

Everything here happens within the lock of the tensor that it is about.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.store import disk_writes
from app.store.catalogue import AnsweredKey, Row, Transaction
from app.store.checkpoint_preparation import REMAINDER_DIVISOR, CheckpointPreparation
from app.store.idempotency import IdempotencyKeys
from app.store.mapped_tensor import damaged
from app.store.scatter_in_place import WritableTensor
from app.store.scatter_log import BrokenLog, Entry, Record, ScatterLog
from app.store.tensor_file import DAMAGED, BadFile, HeaderWord
from app.store.tensor_metadata import ALWAYS, Conditions
from app.tensors.scatter_call import Reduction

logger = logging.getLogger("gathernd")
CHECKPOINT_BYTES: Final = 1 << 26
CHECKPOINT_KEYS: Final = 20_000
_KEYS_PER_TRANSACTION: Final = 1000
_MAX_KNOWN_LOGS: Final = 1000
_BLOCKING_FACTOR: Final = 4
"""How many times over its size a log is emptied within the tensor's lock, which keeps scatters from making it longer
while the disk cannot follow.
"""


class ContentReplaced(Exception):
    """The tensor has another content than the one that the change was made for."""


@dataclass(frozen=True, slots=True)
class ScatterChange:
    """A scatter that was judged against the content `content`: update number i goes to row `rows[i]`.

    `updates` are flat items, `width` of them a row. `key` is the Idempotency-Key, `digest` names the request.
    """

    content: str
    rows: NDArray[np.int64]
    updates: NDArray[Any]
    width: int
    reduction: Reduction
    key: str | None = None
    digest: str = ""


class PendingScatter:
    """A scatter that waits to be carried out, and what came of it once it is settled."""

    __slots__ = ("_outcome", "change", "conditions", "done")

    def __init__(self, change: ScatterChange, conditions: Conditions = ALWAYS) -> None:
        self.change = change
        self.conditions = conditions
        self.done = False
        self._outcome: str | BaseException = ""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.change.updates.nbytes + self.change.rows.nbytes

    @property
    def etag(self) -> str | None:
        """The ETag, if it is settled without an error."""
        return self._outcome if self.done and isinstance(self._outcome, str) else None

    def finish(self, outcome: str | BaseException) -> None:
        """Its new ETag is durable, or it met an error."""
        self._outcome = outcome
        self.done = True

    def result(self) -> str:
        """The ETag; raises the error that it met."""
        outcome, self._outcome = self._outcome, ""  # an error leads to this frame, and is to go with it
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class _NotLogged(Exception):
    def __init__(self, error: OSError) -> None:
        self.error = error


def _can_join(change: ScatterChange, records: Sequence[Record]) -> bool:
    """Whether a change can be worked out before `records` are applied, and its key is none of theirs."""
    if change.key is not None and any(record.entry.key == change.key for record in records):
        return False
    width = change.width * change.updates.itemsize
    return change.reduction == "none" or all(record.entry.width in (0, width) for record in records)


class ScatterExecutor:
    """The logs in one folder, and the tensors' files that they belong to."""

    def __init__(
        self,
        tensors: Path,
        logs: Path,
        keys: IdempotencyKeys,
        change: Callable[[], AbstractContextManager[Transaction]],
    ) -> None:
        """`change` begins a transaction of the catalogue that ends with its context."""
        self._tensor_folder = tensors
        self._log_folder = logs
        self._keys = keys
        self._change = change
        self._known_logs: OrderedDict[str, ScatterLog] = OrderedDict()
        self._lock = Lock()
        self.checkpoint_bytes = CHECKPOINT_BYTES

    @contextmanager
    def open(self, row: Row) -> Iterator[WritableTensor]:
        """A tensor's file for writing, with every logged change in it. Raises tensor_damaged and OSError."""
        with self._opened(row) as writable:
            self._replay(writable)
            if writable.words[HeaderWord.VERSION] & DAMAGED:
                raise damaged(row.name, "its checksums or its log do not match")
            yield writable

    @contextmanager
    def _opened(self, row: Row) -> Iterator[WritableTensor]:
        # What is known of a log belongs to whoever has the tensor's lock. It is kept for the next one, but never
        # dropped while in use, since a log that is not known to its end would be written over.
        with self._lock:
            journal = self._known_logs.pop(row.content, None)
        if journal is None:
            journal = ScatterLog(self._log_folder / row.content)
        try:
            with self._writable(row, journal) as writable:
                yield writable
        finally:
            with self._lock:
                self._known_logs[row.content] = journal
                while len(self._known_logs) > _MAX_KNOWN_LOGS:
                    self._known_logs.popitem(last=False)

    def _writable(self, row: Row, journal: ScatterLog) -> WritableTensor:
        try:
            writable = WritableTensor(self._tensor_folder / row.file, journal)
        except BadFile as problem:
            raise damaged(row.name, str(problem)) from None
        except FileNotFoundError:
            raise damaged(row.name, "its file is missing") from None
        if (writable.description.id, writable.description.name) != (row.content, row.name):
            writable.__exit__(None, None, None)
            raise damaged(row.name, "its file describes another tensor")
        return writable

    def _replay(self, writable: WritableTensor) -> None:
        """Finish what a process that died within a scatter has left."""
        journal = writable.log
        try:
            records = journal.read()
            done = writable.version >> 1
            if journal.last_sequence is not None and journal.last_sequence > done:
                # This process has read the record before, perhaps written it, and it has not been applied.
                records = journal.read(everything=True)
        except BrokenLog:
            writable.mark_damaged()
            return
        left = [record for record in records if record.entry.sequence and record.entry.sequence > done]
        if left:
            # Whoever logged them may have died before they were durable, and applied they are seen.
            journal.make_durable()
            writable.apply(left)
        if writable.version & 1:
            writable.mark_damaged()

    def execute(self, writable: WritableTensor, batch: Sequence[PendingScatter]) -> None:
        """Carry out scatters as if one after the other, with one wait for the disk where that can be; settles each.

        Those that the disk refuses meet OSError, and have changed nothing then.
        """
        try:
            self._execute_batch(writable, batch)
        except _NotLogged as refused:
            if len(batch) == 1:
                raise refused.error from None
            # Together they may be too much where some of them are not.
            for one in batch:
                if not one.done:
                    try:
                        self._execute_batch(writable, [one])
                    except _NotLogged as alone:
                        one.finish(alone.error)

    def _execute_batch(self, writable: WritableTensor, batch: Sequence[PendingScatter]) -> None:
        records: list[Record] = []
        outcomes: list[tuple[PendingScatter, str | Exception]] = []

        def commit() -> None:
            if records:
                self._commit(writable, records)
            for one, outcome in outcomes:
                one.finish(outcome)
            records.clear()
            outcomes.clear()

        for one in batch:
            if records and not _can_join(one.change, records):
                commit()
            try:
                outcomes.append((one, self._add(writable, one, records)))
            except (GatherError, ContentReplaced) as error:
                outcomes.append((one, error))
        commit()

    def _add(self, writable: WritableTensor, one: PendingScatter, records: list[Record]) -> str:
        """Add to `records` what `one` changes after them; its ETag."""
        last = records[-1].entry.sequence if records else None
        answered = self.check(writable, one, last)
        if answered is not None:
            return answered
        about, change = writable.description, one.change
        rows, values = writable.new_rows(change.rows, change.updates, change.width, change.reduction, records)
        sequence = (writable.version >> 1 if last is None else last) + 1
        entry = Entry(
            sequence, time.time_ns(), change.key, change.digest, about.etag(sequence), len(rows), values.shape[1],
            self._keys.clock.now(),
        )  # fmt: skip
        records.append(Record(entry, rows, values))
        return entry.etag

    def check(self, writable: WritableTensor, one: PendingScatter, last: int | None = None) -> str | None:
        """The ETag that was answered to `one` before, None if it is to be carried out, after sequence `last` if given.

        Raises precondition_failed, invalid_field, insufficient_storage, OSError and Replaced.
        """
        about, change, journal = writable.description, one.change, writable.log
        answered = self._keys.find_etag(about.name, journal, change.key, change.digest)
        if answered is not None:
            return answered
        one.conditions.check(about.etag(writable.version >> 1 if last is None else last))
        if about.id != change.content:
            raise ContentReplaced
        if change.key is not None:
            self._keys.check_limit(about.name, journal)
        return None

    def _commit(self, writable: WritableTensor, records: Sequence[Record]) -> None:
        """Log records and apply them. Raises _NotLogged, and nothing has changed then."""
        journal = writable.log
        try:
            try:
                journal.append(records)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.checkpoint(writable)  # the log itself may be what fills the disk
                journal.append(records)
        except OSError as error:
            raise _NotLogged(error) from None
        writable.apply(records)
        if journal.end > _BLOCKING_FACTOR * self.checkpoint_bytes:
            self.try_checkpoint(writable)

    def is_due(self, writable: WritableTensor) -> bool:
        """Whether the log is to be emptied."""
        journal = writable.log
        return journal.end > self.checkpoint_bytes or len(journal.keys) > CHECKPOINT_KEYS

    def prepare(self, row: Row) -> CheckpointPreparation:
        """The beginnings of a checkpoint, for whoever does not hold the lock. Raises BadFile and OSError."""
        return CheckpointPreparation(self._tensor_folder / row.file, self._log_folder / row.content)

    def advance(self, row: Row, preparation: CheckpointPreparation, head: bytes, end: int) -> None:
        """Prepare a checkpoint of the log with this `head` up to `end`, its keys too; without the lock.

        Raises BrokenLog where the log is another one by now, and OSError.
        """
        entries = preparation.advance(head, end)
        for first in range(0, len(entries), _KEYS_PER_TRANSACTION):  # nobody waits long for the catalogue
            self._store_keys(row.name, entries[first : first + _KEYS_PER_TRANSACTION])

    def is_nearly_done(self, writable: WritableTensor, preparation: CheckpointPreparation) -> bool:
        """Whether so little of a checkpoint is left that it may be done within the lock."""
        return writable.log.end - preparation.end <= self.checkpoint_bytes // REMAINDER_DIVISOR

    def try_checkpoint(self, writable: WritableTensor, preparation: CheckpointPreparation | None = None) -> None:
        """`checkpoint` after a change that is made: one that the disk refuses is tried again after the next change."""
        try:
            self.checkpoint(writable, preparation=preparation)
        except OSError as error:
            logger.warning("the log of %s could not be emptied: %s", writable.description.name, error.strerror)

    def checkpoint(
        self,
        writable: WritableTensor,
        records: Sequence[Record] | None = None,
        preparation: CheckpointPreparation | None = None,
    ) -> None:
        """Empty the log, once the content, its checksums and the log's keys are durable elsewhere. Raises OSError.

        `records` are all that it holds, if they have been read.
        """
        journal = writable.log
        rest = None if preparation is None else preparation.remaining_records(journal)
        if preparation is not None and rest is not None:
            writable.make_durable(rest, preparation.checksums)
            self._store_keys(writable.description.name, [record.entry for record in rest])
        else:
            writable.make_durable(journal.read(everything=True) if records is None else records)
            self._store_keys(writable.description.name, journal.keys.values())
        try:
            disk_writes.unlink(journal.path)
            disk_writes.fsync_folder(self._log_folder)
        finally:
            journal.read()

    def _store_keys(self, name: str, entries: Iterable[Entry]) -> None:
        """Enter the keys of these entries in the catalogue."""
        living = self._keys.unexpired(name, entries)
        if living:
            with self._change() as transaction:
                self._keys.store(transaction, living)

    def living_keys(self, row: Row, more: Sequence[AnsweredKey] = ()) -> list[AnsweredKey]:
        """The keys in the log of a content that is about to go, and `more`. Raises OSError."""
        with self._lock:
            journal = self._known_logs.pop(row.content, None)
        if journal is None:
            journal = ScatterLog(self._log_folder / row.content)
        with suppress(BrokenLog):
            journal.read()
        return [*self._keys.unexpired(row.name, journal.keys.values()), *more]

    def forget(self, content: str) -> None:
        """Remove the log of a content that is no more."""
        with self._lock:
            self._known_logs.pop(content, None)
        # Whatever cannot be removed now is removed later, as is what a crash leaves: see `leftovers`.
        with suppress(OSError):
            disk_writes.unlink(self._log_folder / content)

    def recover(self, row: Row) -> None:
        """At start-up: bring a content to what its log says, all of it, and empty the log.

        Raises tensor_damaged and OSError.
        """
        with self._opened(row) as writable:
            journal = writable.log
            try:
                records = journal.read(everything=True)
            except BrokenLog:
                logger.error("the log of %s is damaged: acknowledged changes are lost", row.name)
                writable.mark_damaged()
                return
            self._keys.clock.advance_to(max((entry.clock or 0 for entry in journal.keys.values()), default=0))
            if any(record.entry.sequence for record in records):
                journal.make_durable()
                writable.apply(records)
            if writable.version & 1:
                logger.error("the log of %s lacks the change that was under way", row.name)
                writable.mark_damaged()
                return
            self.checkpoint(writable, records)

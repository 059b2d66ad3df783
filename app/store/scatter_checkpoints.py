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
from app.store.catalogue import Answer, Row, Transaction
from app.store.checkpoint_preparation import LITTLE, Preparation
from app.store.idempotency import Keys
from app.store.mapped_tensor import damaged
from app.store.scatter_in_place import Writable
from app.store.scatter_log import BrokenLog, Entry, Journal, Record
from app.store.tensor_file import DAMAGED, BadFile, Word
from app.store.tensor_metadata import ALWAYS, Conditions
from app.tensors.scatter_call import Reduction

logger = logging.getLogger("gathernd")
CHECKPOINT_BYTES: Final = 1 << 26
CHECKPOINT_KEYS: Final = 20_000
_KEYS_AT_ONCE: Final = 1000
_KNOWN_LOGS: Final = 1000
_FAR_OVER: Final = 4
"""How many times over its size a log is emptied within the tensor's lock, which keeps scatters from making it longer
while the disk cannot follow.
"""


class Replaced(Exception):
    """The tensor has another content than the one that the change was made for."""


@dataclass(frozen=True, slots=True)
class Change:
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


class Waiting:
    """A scatter that waits to be carried out, and what came of it once it is settled."""

    __slots__ = ("_outcome", "change", "conditions", "settled")

    def __init__(self, change: Change, conditions: Conditions = ALWAYS) -> None:
        self.change = change
        self.conditions = conditions
        self.settled = False
        self._outcome: str | BaseException = ""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.change.updates.nbytes + self.change.rows.nbytes

    @property
    def etag(self) -> str | None:
        """The ETag, if it is settled without an error."""
        return self._outcome if self.settled and isinstance(self._outcome, str) else None

    def settle(self, outcome: str | BaseException) -> None:
        """Its new ETag is durable, or it met an error."""
        self._outcome = outcome
        self.settled = True

    def result(self) -> str:
        """The ETag; raises the error that it met."""
        outcome, self._outcome = self._outcome, ""  # an error leads to this frame, and is to go with it
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class _NotLogged(Exception):
    def __init__(self, error: OSError) -> None:
        self.error = error


def _goes_with(change: Change, records: Sequence[Record]) -> bool:
    """Whether a change can be worked out before `records` are applied, and its key is none of theirs."""
    if change.key is not None and any(record.entry.key == change.key for record in records):
        return False
    width = change.width * change.updates.itemsize
    return change.reduction == "none" or all(record.entry.width in (0, width) for record in records)


class Changes:
    """The logs in one folder, and the tensors' files that they belong to."""

    def __init__(
        self, tensors: Path, logs: Path, keys: Keys, change: Callable[[], AbstractContextManager[Transaction]]
    ) -> None:
        """`change` begins a transaction of the catalogue that ends with its context."""
        self._tensors = tensors
        self._logs = logs
        self._keys = keys
        self._change = change
        self._journals: OrderedDict[str, Journal] = OrderedDict()
        self._lock = Lock()
        self.checkpoint_bytes = CHECKPOINT_BYTES

    @contextmanager
    def open(self, row: Row) -> Iterator[Writable]:
        """A tensor's file for writing, with every logged change in it. Raises tensor_damaged and OSError."""
        with self._opened(row) as writable:
            self._settle(writable)
            if writable.words[Word.STAMP] & DAMAGED:
                raise damaged(row.name, "its checksums or its log do not match")
            yield writable

    @contextmanager
    def _opened(self, row: Row) -> Iterator[Writable]:
        # What is known of a log belongs to whoever has the tensor's lock. It is kept for the next one, but never
        # dropped while in use, since a log that is not known to its end would be written over.
        with self._lock:
            journal = self._journals.pop(row.content, None)
        if journal is None:
            journal = Journal(self._logs / row.content)
        try:
            with self._writable(row, journal) as writable:
                yield writable
        finally:
            with self._lock:
                self._journals[row.content] = journal
                while len(self._journals) > _KNOWN_LOGS:
                    self._journals.popitem(last=False)

    def _writable(self, row: Row, journal: Journal) -> Writable:
        try:
            writable = Writable(self._tensors / row.file, journal)
        except BadFile as problem:
            raise damaged(row.name, str(problem)) from None
        except FileNotFoundError:
            raise damaged(row.name, "its file is missing") from None
        if (writable.description.id, writable.description.name) != (row.content, row.name):
            writable.__exit__(None, None, None)
            raise damaged(row.name, "its file describes another tensor")
        return writable

    def _settle(self, writable: Writable) -> None:
        """Finish what a process that died within a scatter has left."""
        journal = writable.journal
        try:
            records = journal.read()
            done = writable.stamp >> 1
            if journal.last is not None and journal.last > done:
                # This process has read the record before, perhaps written it, and it has not been applied.
                records = journal.read(everything=True)
        except BrokenLog:
            writable.damage()
            return
        left = [record for record in records if record.entry.sequence and record.entry.sequence > done]
        if left:
            # Whoever logged them may have died before they were durable, and applied they are seen.
            journal.sync()
            writable.apply(left)
        if writable.stamp & 1:
            writable.damage()

    def carry_out(self, writable: Writable, batch: Sequence[Waiting]) -> None:
        """Carry out scatters as if one after the other, with one wait for the disk where that can be; settles each.

        Those that the disk refuses meet OSError, and have changed nothing then.
        """
        try:
            self._together(writable, batch)
        except _NotLogged as refused:
            if len(batch) == 1:
                raise refused.error from None
            # Together they may be too much where some of them are not.
            for one in batch:
                if not one.settled:
                    try:
                        self._together(writable, [one])
                    except _NotLogged as alone:
                        one.settle(alone.error)

    def _together(self, writable: Writable, batch: Sequence[Waiting]) -> None:
        records: list[Record] = []
        outcomes: list[tuple[Waiting, str | Exception]] = []

        def commit() -> None:
            if records:
                self._commit(writable, records)
            for one, outcome in outcomes:
                one.settle(outcome)
            records.clear()
            outcomes.clear()

        for one in batch:
            if records and not _goes_with(one.change, records):
                commit()
            try:
                outcomes.append((one, self._add(writable, one, records)))
            except (GatherError, Replaced) as error:
                outcomes.append((one, error))
        commit()

    def _add(self, writable: Writable, one: Waiting, records: list[Record]) -> str:
        """Add to `records` what `one` changes after them; its ETag."""
        last = records[-1].entry.sequence if records else None
        answered = self.judge(writable, one, last)
        if answered is not None:
            return answered
        about, change = writable.description, one.change
        rows, values = writable.compute(change.rows, change.updates, change.width, change.reduction, records)
        sequence = (writable.stamp >> 1 if last is None else last) + 1
        entry = Entry(
            sequence, time.time_ns(), change.key, change.digest, about.etag(sequence), len(rows), values.shape[1],
            self._keys.clock.now(),
        )  # fmt: skip
        records.append(Record(entry, rows, values))
        return entry.etag

    def judge(self, writable: Writable, one: Waiting, last: int | None = None) -> str | None:
        """The ETag that was answered to `one` before, None if it is to be carried out, after sequence `last` if given.

        Raises precondition_failed, invalid_field, insufficient_storage, OSError and Replaced.
        """
        about, change, journal = writable.description, one.change, writable.journal
        answered = self._keys.answer(about.name, journal, change.key, change.digest)
        if answered is not None:
            return answered
        one.conditions.check(about.etag(writable.stamp >> 1 if last is None else last))
        if about.id != change.content:
            raise Replaced
        if change.key is not None:
            self._keys.check_room(about.name, journal)
        return None

    def _commit(self, writable: Writable, records: Sequence[Record]) -> None:
        """Log records and apply them. Raises _NotLogged, and nothing has changed then."""
        journal = writable.journal
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
        if journal.end > _FAR_OVER * self.checkpoint_bytes:
            self.try_checkpoint(writable)

    def is_due(self, writable: Writable) -> bool:
        """Whether the log is to be emptied."""
        journal = writable.journal
        return journal.end > self.checkpoint_bytes or len(journal.keys) > CHECKPOINT_KEYS

    def prepare(self, row: Row) -> Preparation:
        """The beginnings of a checkpoint, for whoever does not hold the lock. Raises BadFile and OSError."""
        return Preparation(self._tensors / row.file, self._logs / row.content)

    def go_on(self, row: Row, preparation: Preparation, head: bytes, end: int) -> None:
        """Prepare a checkpoint of the log with this `head` up to `end`, its keys too; without the lock.

        Raises BrokenLog where the log is another one by now, and OSError.
        """
        entries = preparation.go_on(head, end)
        for first in range(0, len(entries), _KEYS_AT_ONCE):  # nobody waits long for the catalogue
            self._remember(row.name, entries[first : first + _KEYS_AT_ONCE])

    def is_nearly_done(self, writable: Writable, preparation: Preparation) -> bool:
        """Whether so little of a checkpoint is left that it may be done within the lock."""
        return writable.journal.end - preparation.end <= self.checkpoint_bytes // LITTLE

    def try_checkpoint(self, writable: Writable, preparation: Preparation | None = None) -> None:
        """`checkpoint` after a change that is made: one that the disk refuses is tried again after the next change."""
        try:
            self.checkpoint(writable, preparation=preparation)
        except OSError as error:
            logger.warning("the log of %s could not be emptied: %s", writable.description.name, error.strerror)

    def checkpoint(
        self, writable: Writable, records: Sequence[Record] | None = None, preparation: Preparation | None = None
    ) -> None:
        """Empty the log, once the content, its checksums and the log's keys are durable elsewhere. Raises OSError.

        `records` are all that it holds, if they have been read.
        """
        journal = writable.journal
        rest = None if preparation is None else preparation.rest(journal)
        if preparation is not None and rest is not None:
            writable.write_through(rest, preparation.sums)
            self._remember(writable.description.name, [record.entry for record in rest])
        else:
            writable.write_through(journal.read(everything=True) if records is None else records)
            self._remember(writable.description.name, journal.keys.values())
        try:
            disk_writes.unlink(journal.path)
            disk_writes.fsync_folder(self._logs)
        finally:
            journal.read()

    def _remember(self, name: str, entries: Iterable[Entry]) -> None:
        """Enter the keys of these entries in the catalogue."""
        living = self._keys.living(name, entries)
        if living:
            with self._change() as transaction:
                self._keys.store(transaction, living)

    def living_keys(self, row: Row, more: Sequence[Answer] = ()) -> list[Answer]:
        """The keys in the log of a content that is about to go, and `more`. Raises OSError."""
        with self._lock:
            journal = self._journals.pop(row.content, None)
        if journal is None:
            journal = Journal(self._logs / row.content)
        with suppress(BrokenLog):
            journal.read()
        return [*self._keys.living(row.name, journal.keys.values()), *more]

    def forget(self, content: str) -> None:
        """Remove the log of a content that is no more."""
        with self._lock:
            self._journals.pop(content, None)
        # Whatever cannot be removed now is removed later, as is what a crash leaves: see `leftovers`.
        with suppress(OSError):
            disk_writes.unlink(self._logs / content)

    def recover(self, row: Row) -> None:
        """At start-up: bring a content to what its log says, all of it, and empty the log.

        Raises tensor_damaged and OSError.
        """
        with self._opened(row) as writable:
            journal = writable.journal
            try:
                records = journal.read(everything=True)
            except BrokenLog:
                logger.error("the log of %s is damaged: acknowledged changes are lost", row.name)
                writable.damage()
                return
            self._keys.clock.at_least(max((entry.clock or 0 for entry in journal.keys.values()), default=0))
            if any(record.entry.sequence for record in records):
                journal.sync()
                writable.apply(records)
            if writable.stamp & 1:
                logger.error("the log of %s lacks the change that was under way", row.name)
                writable.damage()
                return
            self.checkpoint(writable, records)

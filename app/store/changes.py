"""Scatters of a store's tensors: remembered answers, the redo log, recovery and checkpoints.

Everything here happens within the lock of the tensor that it is about.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.store import disk
from app.store.content import damaged
from app.store.journal import BrokenLog, Entry, Journal, Record, write_keys
from app.store.layout import DAMAGED, BadFile, Description, Word
from app.store.model import ALWAYS, Conditions
from app.store.scatter import Writable, touched
from app.tensors.scatter import Reduction

logger = logging.getLogger("gathernd")
CHECKPOINT_BYTES: Final = 1 << 26


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

    def __init__(self, logs: Path, incoming: Path) -> None:
        self._logs = logs
        self._incoming = incoming
        self._journals: dict[str, Journal] = {}
        self.checkpoint_bytes = CHECKPOINT_BYTES

    def open(self, path: Path, name: str) -> Writable:
        """A tensor's file for writing, with every logged change in it. Raises FileNotFoundError and tensor_damaged."""
        try:
            writable = Writable(path)
        except BadFile as problem:
            raise damaged(name, str(problem)) from None
        try:
            self._settle(writable)
            if writable.words[Word.STAMP] & DAMAGED:
                raise damaged(name, "its checksums or its log do not match")
        except BaseException:
            writable.__exit__(None, None, None)
            raise
        return writable

    def _settle(self, writable: Writable) -> None:
        """Finish what a process that died within a scatter has left."""
        identifier = writable.description.id
        journal = self.journal(identifier)
        try:
            records = journal.read()
            done = writable.stamp >> 1
            if journal.last is not None and journal.last > done:
                # This process has read the record before, perhaps written it, and it has not been applied.
                records = journal.read(everything=True)
        except BrokenLog:
            writable.damage()
            return
        writable.apply(record for record in records if record.entry.sequence and record.entry.sequence > done)
        if writable.stamp & 1:
            writable.damage()

    def journal(self, identifier: str) -> Journal:
        """The log of a content."""
        journal = self._journals.get(identifier)
        if journal is None:
            if len(self._journals) >= 1000:
                self._journals.clear()
            journal = self._journals[identifier] = Journal(self._logs / identifier)
        return journal

    def answer(self, identifier: str, key: str | None, digest: str) -> str | None:
        """The ETag that was answered to the request with this key, None for one that was not here.

        Raises invalid_field where the key was another request's.
        """
        entry = self.journal(identifier).remembered(key) if key is not None else None
        if entry is None:
            return None
        if entry.digest != digest:
            raise GatherError(
                "invalid_field",
                "this Idempotency-Key came with another request before",
                pointer="/idempotency-key",
            )
        return entry.etag

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
        sequence = max(writable.stamp >> 1 if last is None else last, about.floor) + 1
        entry = Entry(
            sequence, time.time_ns(), change.key, change.digest, about.etag(sequence), len(rows), values.shape[1]
        )
        records.append(Record(entry, rows, values))
        return entry.etag

    def judge(self, writable: Writable, one: Waiting, last: int | None = None) -> str | None:
        """The ETag that was answered to `one` before, None if it is to be carried out, after sequence `last` if given.

        Raises precondition_failed, invalid_field and Replaced.
        """
        about, change = writable.description, one.change
        answered = self.answer(about.id, change.key, change.digest)
        if answered is not None:
            return answered
        one.conditions.check(about.etag(writable.stamp >> 1 if last is None else last))
        if about.id != change.content:
            raise Replaced
        return None

    def _commit(self, writable: Writable, records: Sequence[Record]) -> None:
        """Log records and apply them. Raises _NotLogged, and nothing has changed then."""
        about = writable.description
        journal = self.journal(about.id)
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
        if journal.end > self.checkpoint_bytes:
            # The change is made; a checkpoint that the disk refuses is tried again after the next one.
            try:
                self.checkpoint(writable)
            except OSError as error:
                logger.warning("the log of %s could not be emptied: %s", about.name, error.strerror)

    def checkpoint(self, writable: Writable, records: Iterable[Record] | None = None) -> None:
        """Empty the log but for its keys, once the content and its checksums are on the disk. Raises OSError."""
        journal = self.journal(writable.description.id)
        blocks: set[int] = set()
        for record in journal.read(everything=True) if records is None else records:
            blocks |= touched(record)
        writable.write_through(sorted(blocks))
        living = journal.living()
        if living:
            write_keys(living, self._incoming / f"{writable.description.id}.log", journal.path)
        else:
            disk.unlink(journal.path)
            disk.fsync_folder(self._logs)
        journal.read()

    def carry(self, old: str, new: str, more: Iterable[Entry] = ()) -> None:
        """Let the content `new` remember the keys of the one it replaces, and `more`. Raises OSError."""
        journal = self.journal(old)
        with suppress(BrokenLog):
            journal.read()
        living = [*journal.living(), *more]
        if living:
            write_keys(living, self._incoming / f"{new}.log", self._logs / new)

    def forget(self, identifier: str) -> None:
        """Remove the log of a content that is no more."""
        self._journals.pop(identifier, None)
        # Whatever cannot be removed now is removed at the next start.
        with suppress(OSError):
            disk.unlink(self._logs / identifier)

    def recover(self, path: Path, description: Description) -> None:
        """At start-up: bring a content to what its log says, all of it, and empty the log. Raises OSError."""
        journal = self.journal(description.id)
        with Writable(path) as writable:
            try:
                records = journal.read(everything=True)
            except BrokenLog:
                logger.error("the log of %s is damaged: acknowledged changes are lost", description.name)
                writable.damage()
                return
            writable.apply(records)
            if writable.stamp & 1:
                logger.error("the log of %s lacks the change that was under way", description.name)
                writable.damage()
            elif any(record.entry.sequence for record in records):
                self.checkpoint(writable, records)

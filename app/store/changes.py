"""Scatters of a store's tensors: remembered answers, the redo log, recovery and checkpoints.

Everything here happens within the lock of the tensor that it is about.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable
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

    def scatter(self, writable: Writable, change: Change) -> str:
        """Carry out a change, durably; the new ETag. Raises OSError, and nothing has changed then."""
        about = writable.description
        rows, values = writable.compute(change.rows, change.updates, change.width, change.reduction)
        sequence = max(writable.stamp >> 1, about.floor) + 1
        entry = Entry(
            sequence, time.time_ns(), change.key, change.digest, about.etag(sequence), len(rows), values.shape[1]
        )
        record = Record(entry, rows, values)
        journal = self.journal(about.id)
        try:
            journal.append(record)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.checkpoint(writable)  # the log itself may be what fills the disk
            journal.append(record)
        writable.apply((record,))
        if journal.end > self.checkpoint_bytes:
            # The change is made; a checkpoint that the disk refuses is tried again after the next one.
            try:
                self.checkpoint(writable)
            except OSError as error:
                logger.warning("the log of %s could not be emptied: %s", about.name, error)
        return entry.etag

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

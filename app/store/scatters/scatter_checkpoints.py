"""Checkpoints: make the scatters in a redo log durable in the tensor's file, and then remove the log.

A checkpoint stores the log's keys in the catalogue and sets the log aside under another name. The tensor's lock is
needed only to rename the log and to store the most recent keys. After that, scatters continue in a new log while the
checkpoint computes the checksums of the blocks that the old log changed, waits until the content is durable, and
removes the old log.

In some cases, the lock is held for the whole checkpoint: at startup, on a full disk, after a failed fsync of the
content, and if scatters arrive faster than the disk can write them. Hold the tensor's lock when calling methods of
`Checkpoints` that take a `WritableTensor`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import AnsweredKey, Row
from app.store.files import disk_writes
from app.store.files.regular_file import mode_of
from app.store.files.tensor_file import BadFile, HeaderWord
from app.store.idempotency import IdempotencyKeys
from app.store.processes.directory_lock import ProcessGroup
from app.store.scatters.log_frames import BrokenLog, Record
from app.store.scatters.log_replay import ReplayedLogs, catch_up
from app.store.scatters.log_tail import leave_tail
from app.store.scatters.scatter_log import ScatterLog, all_records, full_path, full_records, remove_full
from app.store.scatters.writable_tensor import WritableTensor

logger = logging.getLogger("gathernd")
CHECKPOINT_BYTES: Final = 1 << 26
"""A log longer than this is checkpointed, which limits how much a startup after a crash has to replay."""
CHECKPOINT_KEYS: Final = 20_000
"""A log with more Idempotency-Keys than this is checkpointed. Until then, all of its keys are in memory."""
KEPT_BYTES: Final = 1 << 30
KEPT_RECORDS: Final = 250_000
"""Maximum number of records in a log kept for other machines. A process that rereads it holds all their keys in
memory.
"""
_BLOCKING_FACTOR: Final = 4
"""A log longer than this many times `checkpoint_bytes` is checkpointed while holding the tensor's lock.

Scatters then have to wait, so the log stops growing when they arrive faster than the disk can write them.
"""


@dataclass
class Checkpoints:
    """The checkpoints of a store's tensors."""

    _group: ProcessGroup
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    checkpoint_bytes: int = CHECKPOINT_BYTES
    keeps_log: Callable[[str], bool] = lambda _: False
    """A function that returns whether other machines still need records from a tensor's log. If so, the log may grow to
    KEPT_BYTES.
    """
    renew: Callable[[WritableTensor], object] = lambda _: None
    """A function that rewrites the files of a keyed table: `TableGrowth.renew`, which the store sets."""
    _running: set[str] = field(default_factory=set)
    """Contents whose checkpoints this process is running in the background."""

    def begin_if_due(self, row: Row, writable: WritableTensor) -> Callable[[], None] | None:
        """Return a checkpoint to run in the background without the lock if the log is long, or None.

        Call this after scatters, while holding the tensor's lock.
        """
        log = writable.log
        if not self._is_due(row.name, log) or row.content in self._running:
            return None
        # A log kept for a replica may be long by the time the replica has joined. Scatters should not wait for the
        # checkpoint of that log.
        if log.settled_end > _BLOCKING_FACTOR * self.checkpoint_bytes + (KEPT_BYTES if log.landmarks else 0):
            self._try_checkpoint(writable)
            return None
        self._running.add(row.content)
        return partial(self._run, row, log.keys.copy())

    def _is_due(self, tensor: str, log: ScatterLog) -> bool:
        """Return whether a log's applied records are due for a checkpoint, or its keys are due to be stored."""
        return len(log.keys) > CHECKPOINT_KEYS or (
            log.settled_end > self.checkpoint_bytes and not self._is_kept(tensor, log)
        )

    def _is_kept(self, tensor: str, log: ScatterLog) -> bool:
        """Return whether a log is kept for other machines."""
        if not log.landmarks or log.settled_end > KEPT_BYTES:
            return False
        return (log.last_sequence or 0) - log.landmarks[0][0] < KEPT_RECORDS and self.keeps_log(tensor)

    def _run(self, row: Row, keys: dict[tuple[str, str], AnsweredKey]) -> None:
        """Checkpoint the log of a version's content. `keys` are the keys it had when the checkpoint was scheduled."""
        try:
            self._keys.store_in_parts([*keys.values()])
            if self._set_aside(row, keys):
                self._checkpoint_full(row)
        except (GatherError, BadFile, BrokenLog, BlockingIOError, FileNotFoundError):
            pass  # the content was replaced, or another process is running this checkpoint
        except OSError as error:
            # The callers have received their responses; a later scatter retries the checkpoint.
            _warn(row.name, error.strerror)
        finally:
            self._running.discard(row.content)

    def _set_aside(self, row: Row, keys: Collection[tuple[str, str]]) -> bool:
        """Set aside a long log; its `keys` are already in the catalogue. Returns False if nothing is left to do.

        If an fsync of the content has failed, this method checkpoints the whole log, which writes its rows again.
        """
        with self._group.locks.tensor(row.name):
            if self._index.find(row.reference) is not row:
                return False
            with self._logs.open(row) as writable:
                log = writable.log
                if writable.words[HeaderWord.UNWRITTEN]:
                    self._try_checkpoint(writable)
                    return False
                if mode_of(full_path(log.path)) is None and self._is_due(row.name, log):
                    self._keys.store_in_parts([answer for key, answer in log.keys.items() if key not in keys])
                    if self._is_kept(row.name, log):
                        log.keys.clear()  # they are in the catalogue now
                        return False
                    if log.tail:
                        leave_tail(log, aside=True)
                        log.settle(writable.applied)
                    else:
                        log.set_aside()
                return True

    def _checkpoint_full(self, row: Row) -> None:
        """Checkpoint the log that was set aside. Requires no lock, because that log no longer changes."""
        log = ScatterLog(self._logs.log_folder / row.content)
        with (
            closing(WritableTensor(self._logs.tensor_folder, row, log)) as writable,
            writable.checkpoint_lock(wait=False),
        ):
            if not writable.words[HeaderWord.UNWRITTEN] and self._index.find(row.reference) is row:
                writable.make_durable(full_records(log.path))
                remove_full(log.path)

    def _try_checkpoint(self, writable: WritableTensor) -> None:
        """Run `checkpoint` after a scatter. If the disk reports an error, a later scatter retries the checkpoint.

        If an fsync has failed, a keyed table gets new files; `writable` must not be used after that.
        """
        try:
            if writable.words[HeaderWord.UNWRITTEN] and writable.row.keys is not None:
                self.renew(writable)
            else:
                self.checkpoint(writable)
        except OSError as error:
            _warn(writable.description.name, error.strerror)
        except GatherError as problem:
            _warn(writable.description.name, problem.detail)

    def append(self, writable: WritableTensor, records: Sequence[Record]) -> None:
        """Durably append records to the log as one frame. On OSError, the log stays as it was."""
        try:
            writable.log.append(records)
        except OSError as error:
            is_renewed = writable.row.keys is not None and writable.words[HeaderWord.UNWRITTEN]
            if error.errno not in disk_writes.FULL or is_renewed:
                raise
            self.checkpoint(writable)  # the log itself may fill the disk
            writable.log.append(records)

    def checkpoint(self, writable: WritableTensor) -> None:
        """Make the content, its checksums and the log's keys durable, and then remove the log. Raises OSError.

        The tail stays in the log.
        """
        log = writable.log
        with writable.checkpoint_lock():
            records = all_records(log.path)
            writable.make_durable(one for one in records if one.entry.sequence <= writable.applied)
            self._keys.store_in_parts([*log.keys.values()])
            self.empty_log(writable)

    def empty_log(self, writable: WritableTensor) -> None:
        """Remove the log of a version after the content and the log's keys have become durable. Raises OSError.

        The tail stays in the log.
        """
        log = writable.log
        try:
            remove_full(log.path)  # first, because its records must not be replayed without the newer log
            if log.tail:
                leave_tail(log, aside=False)
            else:
                disk_writes.unlink(log.path)
                disk_writes.fsync_folder(self._logs.log_folder)
        finally:
            log.read()
            log.settle(writable.applied)

    def recover(self, row: Row) -> None:
        """At startup, apply everything in the log of a version's content, and then remove the log.

        The log of a replicated version is kept; see `log_replay`. Raises tensor_damaged and OSError.
        """
        with self._logs.open_without_replay(row) as writable:
            log = writable.log
            if writable.words[HeaderWord.EPOCH]:
                catch_up(writable, self._logs.session())
                clocks = [key.clock for key in log.keys.values()] + [one.entry.clock for one in log.tail]
                self._keys.clock.advance_to(max(clocks, default=0))
                return

            try:
                count = sum(1 for _ in writable.logged())  # check all records before any of them is applied
                log.read()
                if count:
                    log.make_durable()
                    writable.repair(writable.logged)
                    if row.keys is not None:  # the repair wrote everything again that a failed fsync may have lost
                        writable.set_words({HeaderWord.UNWRITTEN: 0})
            except BrokenLog:
                logger.error("the log of %s is damaged: acknowledged changes are lost", row.name)
                writable.mark_damaged()
                return
            self._keys.clock.advance_to(max((entry.clock for entry in log.keys.values()), default=0))
            if writable.version & 1:
                logger.error("the log of %s lacks the change that was in progress", row.name)
                writable.mark_damaged()
                return
            self.checkpoint(writable)


def _warn(name: str, why: str | None) -> None:
    logger.warning("the log of %s could not be checkpointed: %s", name, why)

"""Checkpoints: writing the scatters in a redo log through to the tensor's file, and removing the log.

A checkpoint waits for the disk for as long as the disk takes to write what has changed, so most of it is done without
the tensor's lock (`checkpoint_preparation`). The methods that take a `WritableTensor` are called within that lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files import disk_writes
from app.store.files.tensor_file import BadFile
from app.store.idempotency import IdempotencyKeys
from app.store.processes.directory_lock import ProcessGroup
from app.store.scatters.checkpoint_preparation import REMAINDER_DIVISOR, ROUNDS, CheckpointPreparation
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.scatter_log import BrokenLog, Entry, Record
from app.store.scatters.writable_tensor import WritableTensor

logger = logging.getLogger("gathernd")
CHECKPOINT_BYTES: Final = 1 << 26
"""A log is checkpointed once it is longer: it is what a start after a crash has to replay."""
CHECKPOINT_KEYS: Final = 20_000
"""And once it holds more Idempotency-Keys, all of which are in memory until then."""
_KEYS_PER_TRANSACTION: Final = 1000
_BLOCKING_FACTOR: Final = 4
"""A log this many times over its size is checkpointed within the tensor's lock: scatters wait, so that it grows no more
where they come faster than the disk writes them.
"""


@dataclass
class Checkpoints:
    """The checkpoints of the tensors of a store."""

    _group: ProcessGroup
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    checkpoint_bytes: int = CHECKPOINT_BYTES
    _running: set[str] = field(default_factory=set)
    """Contents whose checkpoint this process runs in the background."""

    def prepare_if_due(self, row: Row, writable: WritableTensor) -> Callable[[], None] | None:
        """The checkpoint of this content, to be run in the background without the lock; None where it is not due."""
        log = writable.log
        if log.end <= self.checkpoint_bytes and len(log.keys) <= CHECKPOINT_KEYS:
            return None
        if row.content in self._running:
            return None
        self._running.add(row.content)
        return partial(self._run, row, log.log_id, log.end)

    def limit_log(self, writable: WritableTensor) -> None:
        """After a scatter: checkpoint at once where the log has grown far beyond its size."""
        if writable.log.end > _BLOCKING_FACTOR * self.checkpoint_bytes:
            self._try_checkpoint(writable)

    def _run(self, row: Row, log_id: bytes, end: int) -> None:
        """Checkpoint the log with this id, which reached to `end`; scatters go on for most of it."""
        try:
            tensor, log = self._logs.tensor_folder / row.file, self._logs.log_folder / row.content
            with closing(CheckpointPreparation(tensor, log)) as preparation:
                for completed_rounds in range(1, ROUNDS + 1):
                    self._advance(row, preparation, log_id, end)
                    with self._group.locks.tensor(row.name):
                        if self._index.find(row.reference) is not row:
                            return
                        with self._logs.open(row) as writable:
                            if writable.log.log_id != log_id:
                                return
                            end = writable.log.end
                            remainder = end - preparation.end
                            if completed_rounds == ROUNDS or remainder <= self.checkpoint_bytes // REMAINDER_DIVISOR:
                                self._try_checkpoint(writable, preparation)
                                return
        except (GatherError, BadFile, BrokenLog, BlockingIOError, FileNotFoundError):
            pass  # the content or its log has been replaced, or another process or thread runs this checkpoint
        except OSError as error:
            # The scatter has been answered; the next one tries the checkpoint again.
            logger.warning("the log of %s could not be checkpointed: %s", row.name, error.strerror)
        finally:
            self._running.discard(row.content)

    def _advance(self, row: Row, preparation: CheckpointPreparation, log_id: bytes, end: int) -> None:
        """Make durable what the log has up to `end`, and store its keys in the catalogue; without the lock.

        Raises BrokenLog where the log has been replaced, and OSError.
        """
        entries = preparation.advance(log_id, end)
        for first in range(0, len(entries), _KEYS_PER_TRANSACTION):  # no other writer waits long for the catalogue
            self._store_keys(row.name, entries[first : first + _KEYS_PER_TRANSACTION])

    def _try_checkpoint(self, writable: WritableTensor, preparation: CheckpointPreparation | None = None) -> None:
        """`checkpoint` after a scatter; where the disk refuses, the next scatter tries again."""
        try:
            self.checkpoint(writable, preparation=preparation)
        except OSError as error:
            logger.warning("the log of %s could not be checkpointed: %s", writable.description.name, error.strerror)

    def checkpoint(
        self,
        writable: WritableTensor,
        records: Sequence[Record] | None = None,
        preparation: CheckpointPreparation | None = None,
    ) -> None:
        """Remove the log, once the content, its checksums and the log's keys are durable elsewhere. Raises OSError.

        `records` are all that it holds, if they have been read.
        """
        log = writable.log
        remaining = None if preparation is None else preparation.remaining_records(log)
        if preparation is not None and remaining is not None:
            writable.make_durable(remaining, preparation.checksums)
            self._store_keys(writable.description.name, [record.entry for record in remaining])
        else:
            writable.make_durable(log.read(everything=True) if records is None else records)
            self._store_keys(writable.description.name, log.keys.values())
        try:
            disk_writes.unlink(log.path)
            disk_writes.fsync_folder(self._logs.log_folder)
        finally:
            log.read()

    def _store_keys(self, name: str, entries: Iterable[Entry]) -> None:
        """Enter the keys of these entries in the catalogue."""
        unexpired = self._keys.unexpired(name, entries)
        if unexpired:
            with self._index.change() as transaction:
                self._keys.store(transaction, unexpired)

    def recover(self, row: Row) -> None:
        """At start-up: apply everything that a content's log holds, and remove the log.

        Raises tensor_damaged and OSError.
        """
        with self._logs.open_without_replay(row) as writable:
            log = writable.log
            try:
                records = log.read(everything=True)
            except BrokenLog:
                logger.error("the log of %s is damaged: acknowledged changes are lost", row.name)
                writable.mark_damaged()
                return
            self._keys.clock.advance_to(max((entry.clock for entry in log.keys.values()), default=0))
            if records:
                log.make_durable()
                writable.apply(records)
            if writable.version & 1:
                logger.error("the log of %s lacks the change that was under way", row.name)
                writable.mark_damaged()
                return
            self.checkpoint(writable, records)

"""The long part of a checkpoint, done without the tensor's lock, so that scatters go on meanwhile.

A checkpoint reads a log, computes the checksums of the blocks that it has changed, waits until the content is durable,
enters the log's keys in the catalogue, and removes the log. All but the removal is done first for the log as far as it
reaches then, again for what has been added meanwhile, and within the lock for what has been added since.

The last part needs the lock: the log may be removed only when every change in it is durable elsewhere, so that none may
be added in between. It is at most 1/REMAINDER_DIVISOR of a full log, unless the scatters of a tensor come faster than
the disk writes them: then whatever is left after ROUNDS rounds is done within the lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import HeaderWord
from app.store.scatters.scatter_log import Entry, Record, ScatterLog
from app.store.scatters.writable_tensor import WritableTensor, dirty_blocks

ROUNDS: Final = 4
REMAINDER_DIVISOR: Final = 256
"""The lock is taken once no more than this fraction of the size at which a log is checkpointed is left."""


class CheckpointPreparation:
    """The prepared part of a checkpoint of the content at `path`: its log up to `end`. For one thread."""

    def __init__(self, path: Path, log: Path) -> None:
        """Raises BadFile and OSError; BlockingIOError where another thread or process prepares this checkpoint."""
        self._log_fd = open_regular(log)
        try:
            fcntl.flock(self._log_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._log = ScatterLog(log)
            self._writable = WritableTensor(path, self._log)
        except BaseException:
            os.close(self._log_fd)
            raise
        self.checksums: dict[int, int] = {}
        """The checksums of the blocks that were changed, by their numbers."""

    def close(self) -> None:
        """Close the files."""
        self._writable.close()
        os.close(self._log_fd)

    @property
    def end(self) -> int:
        """How far the log has been read."""
        return self._log.end

    def advance(self, log_id: bytes, end: int) -> list[Entry]:
        """Make durable what the log with this id has up to `end`, all of which is applied; the entries that are new.

        Raises BrokenLog where the log has been replaced, and OSError.
        """
        blocks: set[int] = set()
        entries: list[Entry] = []
        for record in self._log.read_until(log_id, end):
            blocks |= dirty_blocks([record])
            entries.append(record.entry)
        # A block that changes while its checksum is computed is in the log after `end`, and computed again.
        self.checksums.update(self._writable.checksums_of(blocks))
        self._writable.flush()
        return entries

    def remaining_records(self, log: ScatterLog) -> list[Record] | None:
        """Within the lock: the records of `log` after `end`; None where the preparation cannot be used.

        That is where the log has been replaced, or an fsync of the content failed, after which all of its changes have
        to be written again. Raises BrokenLog and OSError.
        """
        if log.log_id != self._log.log_id or self._writable.words[HeaderWord.UNWRITTEN]:
            return None
        return list(self._log.read_until(log.log_id, log.end))

"""The long part of a checkpoint, done without the tensor's lock, so that scatters go on meanwhile.

A checkpoint reads a log, sums the blocks that it has changed, waits until the content is durable, enters the log's keys
in the catalogue, and removes the log. All but the last is done first for the log as far as it goes, then for what has
come meanwhile, and within the lock for what has come since.

That last part cannot be done without the lock: the log may go only once every change in it is durable elsewhere, so
that none may come in between. It is bounded by LITTLE, but for a tensor whose scatters come faster than the disk writes
them, after TURNS turns.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from app.store.scatter_in_place import WritableTensor, dirty_blocks
from app.store.scatter_log import Entry, Record, ScatterLog
from app.store.tensor_file import HeaderWord

ROUNDS: Final = 4
REMAINDER_DIVISOR: Final = 256
"""The part of the size at which a log is emptied that is left to be done within the tensor's lock."""


class CheckpointPreparation:
    """What has been done for a checkpoint of the content at `path`, for its log up to `end`; for one thread."""

    def __init__(self, path: Path, log: Path) -> None:
        """Raises BadFile and OSError, of which BlockingIOError says that somebody else prepares this checkpoint."""
        self._log_fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._log_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._log = ScatterLog(log)
            self._writable = WritableTensor(path, self._log)
        except BaseException:
            os.close(self._log_fd)
            raise
        self.checksums: dict[int, int] = {}
        """The checksums of the blocks that were changed, by their numbers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writable.__exit__(kind, error, trace)
        os.close(self._log_fd)

    @property
    def end(self) -> int:
        """How far the log has been read."""
        return self._log.end

    def advance(self, log_id: bytes, end: int) -> list[Entry]:
        """Sum and make durable what the log with this `head` has up to `end`, all of which is applied; its new keys.

        Raises BrokenLog where the log is another one by now, and OSError.
        """
        blocks: set[int] = set()
        entries: list[Entry] = []
        for record in self._log.read_until(log_id, end):
            blocks |= dirty_blocks(record)
            entries.append(record.entry)
        # A block that is changed while it is summed is in what the log gets after `end`, and is summed again.
        self.checksums.update(self._writable.checksums_of(blocks))
        self._writable.flush()
        return entries

    def remaining_records(self, log: ScatterLog) -> list[Record] | None:
        """Within the lock: the records of `journal` that came after `end`; None where this is of no use for it.

        So it is where the log is another one, or where the disk has refused to make the content durable, which then is
        stored again as a whole. Raises BrokenLog and OSError.
        """
        if log.log_id != self._log.log_id or self._writable.words[HeaderWord.UNWRITTEN]:
            return None
        return list(self._log.read_until(log.log_id, log.end))

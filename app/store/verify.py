"""Checksums, compared in the background: a start looks at sizes and headers alone, so a big store is soon ready."""

from __future__ import annotations

import logging
import os
import zlib
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Final

from app.errors import GatherError
from app.store.catalogue import Row
from app.store.directory_lock import ProcessGroup
from app.store.scatter_checkpoints import ScatterExecutor
from app.store.scatter_in_place import dirty_blocks
from app.store.scatter_log import BrokenLog, ScatterLog
from app.store.tensor_file import BLOCK, PAGE, BadFile, Description, decode_page
from app.store.tensor_index import TensorIndex

logger = logging.getLogger("gathernd")
_BLOCKS_PER_PAUSE: Final = 16


class Verifier:
    """Looks through all contents once; of the processes of a group the first one that tries does it."""

    def __init__(
        self, group: ProcessGroup, changes: ScatterExecutor, index: TensorIndex, tensors: Path, logs: Path
    ) -> None:
        self._group = group
        self._changes = changes
        self._index = index
        self._tensors = tensors
        self._logs = logs

    def run(self, stop: Event, pace: float) -> None:
        """See `LocalStore.verify`."""
        with self._group.claim_verification() as chosen:
            if not chosen:
                return
            for name in list(self._index.names()):
                with suppress(OSError, BadFile):
                    self._check(name, stop, pace)
                if stop.is_set():
                    return
            self._group.mark_verified()

    def _check(self, name: str, stop: Event, pace: float) -> None:
        row = self._index.find(name)
        if row is None:
            return
        fd = os.open(self._tensors / row.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = decode_page(os.pread(fd, PAGE, 0), os.fstat(fd).st_size)
            changed = _ChangedBlocks(ScatterLog(self._logs / row.content))
            for first in range(0, about.block_count, _BLOCKS_PER_PAUSE):
                began = perf_counter()
                for block in range(first, min(first + _BLOCKS_PER_PAUSE, about.block_count)):
                    if not _is_sound(fd, about, block) and not self._is_sound(row, fd, about, block, changed):
                        return
                if stop.wait((perf_counter() - began) * pace):
                    return
        finally:
            os.close(fd)

    def _is_sound(self, row: Row, fd: int, about: Description, block: int, changed: _ChangedBlocks) -> bool:
        """Judge a block whose checksum does not match: a scatter has changed it since the last checkpoint, or it is
        damaged. The tensor's lock is held for what is new in the log and this block alone.
        """
        with self._group.lock_tensor(row.name):
            if self._index.find(row.name) != row:
                return False
            with suppress(GatherError), self._changes.open(row) as writable:
                try:
                    changed.catch_up()
                    if block in changed.blocks or _is_sound(fd, about, block):
                        return True
                except BrokenLog:
                    pass
                logger.error("the content of %s is damaged in block %d", row.name, block)
                writable.mark_damaged()
        return False


class _ChangedBlocks:
    """The blocks that a log says were changed since the last checkpoint; within the tensor's lock."""

    def __init__(self, journal: ScatterLog) -> None:
        self._log = journal
        self.blocks: set[int] = set()

    def catch_up(self) -> None:
        """Read what is new in the log. Raises BrokenLog and OSError."""
        head = self._log.log_id
        records = self._log.read()
        if self._log.log_id != head:
            self.blocks.clear()
        for record in records:
            self.blocks |= dirty_blocks(record)


def _is_sound(fd: int, about: Description, block: int) -> bool:
    """Whether a block is as its checksum says."""
    return _checksum(fd, about, block) == int.from_bytes(os.pread(fd, 4, about.checksums_at + 4 * block), "little")


def _checksum(fd: int, about: Description, block: int) -> int:
    begin = PAGE + block * BLOCK
    return zlib.crc32(os.pread(fd, min(BLOCK, about.checksums_at - begin), begin))

"""Compares contents with their checksums in the background; a start checks only sizes and headers."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import PAGE, BadFile, Description, decode_page, is_sound
from app.store.processes.directory_lock import ProcessGroup
from app.store.processes.shared_state import StateWord
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.scatter_log import BrokenLog, ScatterLog
from app.store.scatters.writable_tensor import dirty_blocks

logger = logging.getLogger("gathernd")
_BLOCKS_PER_PAUSE: Final = 16


@dataclass
class Verifier:
    """Verifies all contents once, in the first process of the group that tries."""

    _group: ProcessGroup
    _replayed_logs: ReplayedLogs
    _index: CatalogueCache
    _tensors: Path
    _logs: Path

    def run(self, stop: Event, pause_ratio: float) -> None:
        """See `LocalStore.verify`."""
        with self._group.locks.try_verification() as free:
            if not free or self._group.state[StateWord.VERIFIED]:
                return
            for row in sorted(self._index.rows(), key=lambda row: (row.name, row.version)):
                with suppress(OSError, BadFile):
                    self._check(row, stop, pause_ratio)
                if stop.is_set():
                    return
            self._group.state[StateWord.VERIFIED] = 1

    def _check(self, row: Row, stop: Event, pause_ratio: float) -> None:
        if self._index.find(row.reference) is not row:
            return
        fd = open_regular(self._tensors / row.file)
        try:
            description = decode_page(os.pread(fd, PAGE, 0), os.fstat(fd).st_size)
            changed = _ChangedBlocks(ScatterLog(self._logs / row.content))
            for first in range(0, description.block_count, _BLOCKS_PER_PAUSE):
                began = perf_counter()
                for block in range(first, min(first + _BLOCKS_PER_PAUSE, description.block_count)):
                    if not is_sound(fd, description, block) and not self._was_changed(
                        row, fd, description, block, changed
                    ):
                        return
                if stop.wait((perf_counter() - began) * pause_ratio):
                    return
        finally:
            os.close(fd)

    def _was_changed(self, row: Row, fd: int, description: Description, block: int, changed: _ChangedBlocks) -> bool:
        """Return True if a scatter explains the block's wrong checksum; otherwise mark the tensor as damaged.

        It does if it changed the block since the last checkpoint. The tensor's lock is held only while the new part of
        the log and this block are read.
        """
        with self._group.locks.tensor(row.name):
            if self._index.find(row.reference) != row:
                return False
            with suppress(GatherError), self._replayed_logs.open(row) as writable:
                try:
                    changed.catch_up()
                    if block in changed.blocks or is_sound(fd, description, block):
                        return True
                except BrokenLog:
                    pass
                logger.error("the content of %s is damaged in block %d", row.reference, block)
                writable.mark_damaged()
        return False


class _ChangedBlocks:
    """The blocks that were changed since the last checkpoint, by the log; within the tensor's lock."""

    def __init__(self, log: ScatterLog) -> None:
        self._log = log
        self.blocks: set[int] = set()

    def catch_up(self) -> None:
        """Read the new part of the log. Raises BrokenLog and OSError."""
        head = self._log.log_id
        records = self._log.read()
        if self._log.log_id != head:
            self.blocks.clear()
        self.blocks |= dirty_blocks(records)

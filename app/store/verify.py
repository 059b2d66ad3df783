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
from app.store.changes import Changes
from app.store.group import Group
from app.store.journal import BrokenLog
from app.store.layout import BLOCK, PAGE, BadFile, Description, decode_page
from app.store.scatter import Writable, touched
from app.store.tensor_index import TensorIndex

logger = logging.getLogger("gathernd")
_STEP: Final = 16


class Verifier:
    """Looks through all contents once; of the processes of a group the first one that tries does it."""

    def __init__(self, group: Group, changes: Changes, index: TensorIndex, tensors: Path) -> None:
        self._group = group
        self._changes = changes
        self._index = index
        self._tensors = tensors

    def run(self, stop: Event, pace: float) -> None:
        """See `LocalStore.verify`."""
        with self._group.only_one() as chosen:
            if not chosen:
                return
            for name in list(self._index.names()):
                with suppress(OSError, BadFile):
                    self._check(name, stop, pace)
                if stop.is_set():
                    return
            self._group.verified()

    def _check(self, name: str, stop: Event, pace: float) -> None:
        row = self._index.find(name)
        if row is None:
            return
        fd = os.open(self._tensors / row.file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = decode_page(os.pread(fd, PAGE, 0), os.fstat(fd).st_size)
            for first in range(0, about.blocks, _STEP):
                began = perf_counter()
                blocks = range(first, min(first + _STEP, about.blocks))
                sums = os.pread(fd, 4 * len(blocks), about.sums_at + 4 * first)
                for block in blocks:
                    at = 4 * (block - first)
                    if _checksum(fd, about, block) != int.from_bytes(sums[at : at + 4], "little"):
                        self._doubt(row, block)
                        return
                if stop.wait((perf_counter() - began) * pace):
                    return
        finally:
            os.close(fd)

    def _doubt(self, row: Row, block: int) -> None:
        """A checksum does not match: a scatter has changed the block since the last checkpoint, or it is damaged."""
        with self._group.lock(row.name):
            if self._index.find(row.name) != row:
                return
            with suppress(GatherError), self._changes.open(row) as writable:
                if not self._sound(writable):
                    logger.error("the content of %s is damaged in block %d", row.name, block)
                    writable.damage()

    def _sound(self, writable: Writable) -> bool:
        about = writable.description
        changed: set[int] = set()
        try:
            for record in writable.journal.read(everything=True):
                changed |= touched(record)
        except BrokenLog:
            return False
        sums = memoryview(writable.mapping)[about.sums_at : about.file_size]
        with memoryview(writable.mapping) as view:
            for block in range(about.blocks):
                begin = PAGE + block * BLOCK
                if block not in changed and zlib.crc32(
                    view[begin : min(begin + BLOCK, about.sums_at)]
                ) != int.from_bytes(sums[4 * block : 4 * block + 4], "little"):
                    return False
        return True


def _checksum(fd: int, about: Description, block: int) -> int:
    begin = PAGE + block * BLOCK
    return zlib.crc32(os.pread(fd, min(BLOCK, about.sums_at - begin), begin))

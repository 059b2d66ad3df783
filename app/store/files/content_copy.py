"""Copy a version's content into a file that includes all of its scatters, checking the checksum of each block."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.store.files import disk_writes
from app.store.files.regular_file import open_regular, read_at
from app.store.files.tensor_file import (
    BLOCK,
    KEY_WORDS,
    PAGE,
    BadFile,
    Description,
    HeaderWord,
    decode_page,
    encode_page,
    is_sound,
    page_modified,
    page_version,
    page_word,
)
from app.tensors.buffer_type import Buffer

_BLOCKS_AT_ONCE: Final = 16
Read = Callable[[int, int], Buffer]
"""Returns the bytes between two offsets, counted after the first page."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """Content to copy. `read` returns its bytes; `checksums` are valid for all blocks except those in `changed`.

    `words` are written to the first page, along with the sequence and the time.
    """

    description: Description
    sequence: int
    modified: int
    checksums: bytes
    read: Read
    changed: Collection[int] = ()
    words: Mapping[HeaderWord, int] = field(default_factory=dict)


def copy_content(source: CopySource, target: int) -> None:
    """Write the content into the file `target`, durably.

    Raises BadFile if a block does not match its checksum, and OSError.
    """
    description = source.description
    table = np.frombuffer(source.checksums, "<u4").copy()
    if len(table) != description.block_count:
        raise BadFile("the file ends within its checksums")
    end = description.checksums_at - PAGE
    os.lseek(target, PAGE, os.SEEK_SET)
    for begin in range(0, end, _BLOCKS_AT_ONCE * BLOCK):
        size = min(_BLOCKS_AT_ONCE * BLOCK, end - begin)
        piece = source.read(begin, begin + size)
        _check_blocks(piece, size, begin // BLOCK, table, source.changed)
        disk_writes.write(target, piece)
    disk_writes.write_at(target, encode_page(description, 2 * source.sequence, source.modified, source.words), 0)
    disk_writes.write_at(target, table.tobytes(), description.checksums_at)
    disk_writes.truncate(target, description.file_size)
    disk_writes.fsync(target)


def _check_blocks(
    piece: Buffer,
    size: int,
    first: int,
    table: NDArray[np.uint32],
    changed: Collection[int],
) -> None:
    """Compare whole blocks with their checksums; `first` is the number of the first block in `piece`.

    Writes the checksums of changed blocks to `table`. Raises BadFile.
    """
    with memoryview(piece) as view:
        if len(view) != size:
            raise BadFile("the file ends early")
        for begin in range(0, size, BLOCK):
            block = first + begin // BLOCK
            checksum = zlib.crc32(view[begin : begin + BLOCK])
            if checksum != table[block]:
                if block not in changed:
                    raise BadFile(f"block {block} does not match its checksum")
                table[block] = checksum


class SealedFile:
    """A file written by `copy_content`, open for reading."""

    def __init__(self, path: Path) -> None:
        """Raises BadFile and OSError."""
        self._fd = open_regular(path)
        try:
            page = os.pread(self._fd, PAGE, 0)
            self.description = decode_page(page, os.fstat(self._fd).st_size)
            self.checksums = read_at(self._fd, self.description.checksums_at, 4 * self.description.block_count)
            self.sequence, changing = divmod(page_version(page), 2)
            if changing:
                raise BadFile("its first page was changed")
            self.modified = page_modified(page)
            self.words = {word: page_word(page, word) for word in KEY_WORDS}
        except BaseException:
            self.close()
            raise

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes between two offsets, in the form that `copy_content` requests."""
        return read_at(self._fd, PAGE + begin, end - begin)

    def check(self) -> None:
        """Check all blocks against their checksums. Raises BadFile and OSError."""
        for block in range(self.description.block_count):
            if not is_sound(self._fd, self.description, block):
                raise BadFile(f"block {block} does not match its checksum")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

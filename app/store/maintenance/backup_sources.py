"""The files that a backup copies for one version: its row file and, if it has keys, its key file.

A file is copied block by block. The copy includes all scatters up to its sequence, and each block is compared with its
checksum. All functions may raise BadFile and OSError.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.store.catalogue.catalogue_rows import Row
from app.store.files import disk_writes
from app.store.files.download_snapshots import Snapshot
from app.store.files.key_files import describe_keys
from app.store.files.mapped_tensor import MappedContent
from app.store.files.regular_file import open_regular, read_at
from app.store.files.tensor_file import (
    BLOCK,
    DAMAGED,
    KEY_WORDS,
    PAGE,
    BadFile,
    Description,
    HeaderWord,
    decode_page,
    encode_page,
    is_settled,
    is_sound,
    page_modified,
    page_version,
    page_word,
)
from app.store.scatters.log_frames import BrokenLog, dirty_blocks, dirty_key_blocks
from app.store.scatters.scatter_log import all_records
from app.store.scatters.writable_tensor import WritableTensor
from app.tensors.buffer_type import Buffer

_BLOCKS_AT_ONCE: Final = 16
Read = Callable[[int, int], Buffer]
"""A function that returns the bytes between two offsets, which are counted after the first page."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """A file to be copied. `read` returns its bytes. `checksums` is valid for all blocks except those in `changed`.

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
    """Durably write the content to the file `target`.

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
    """Compare whole blocks with their checksums. `first` is the index of the first block in `piece`.

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
        """Open the file. Raises BadFile and OSError."""
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
        """Return the bytes between two offsets; see `CopySource.read`."""
        return read_at(self._fd, PAGE + begin, end - begin)

    def check(self) -> None:
        """Check all blocks against their checksums. Raises BadFile and OSError."""
        for block in range(self.description.block_count):
            if not is_sound(self._fd, self.description, block):
                raise BadFile(f"block {block} does not match its checksum")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def present_sources(writable: WritableTensor, folder: Path, snapshots: Path, stack: ExitStack) -> list[CopySource]:
    """Return the current files of a version.

    Call this while holding the tensor's lock. Reading the files requires no lock.
    """
    row, words = writable.row, writable.words
    sequence, modified = writable.applied, words[HeaderWord.MODIFIED]
    of_keys = _key_words(words[HeaderWord.ROWS], words[HeaderWord.HEAP_END]) if row.keys is not None else {}
    fds = [_open_file(folder / name, stack) for name in row.files[:2]]
    description = writable.description
    try:
        changed = dirty_blocks(all_records(writable.log.path))
        rows = CopySource(description, sequence, modified, _checksums(fds[0], description), _reader(fds[0]), changed,
                          of_keys)  # fmt: skip
        if description.dtype == "string":  # scatters never change its files
            return [rows, *(_keys_source(fd, row, modified) for fd in fds[1:])]
        snapshot = Snapshot(MappedContent(folder / row.file, row, nullcontext), snapshots)
        stack.callback(snapshot.close)
        sources = [CopySource(description, sequence, modified, rows.checksums, snapshot.read, changed, of_keys)]
        for fd in fds[1:]:
            _, layout = describe_keys(fd, row)
            heap = words[HeaderWord.HEAP_CHECKED], words[HeaderWord.HEAP_END]
            dirty = dirty_key_blocks(all_records(writable.log.path), layout, *heap)
            sources.append(_keys_source(fd, row, modified, snapshot.read_keys, dirty))
    except BrokenLog:
        raise BadFile("its log is damaged") from None
    return sources


def removed_sources(row: Row, opened: int, keys: int) -> list[CopySource] | None:
    """Return the open files of a replaced or removed version, whose content therefore no longer changes.

    `opened` and `keys` are the descriptors of the row file and the key file; `keys` is -1 if the version has no keys.
    Returns None if the content is damaged, unsettled or in the middle of a change.
    """
    page = os.pread(opened, PAGE, 0)
    description = decode_page(page, os.fstat(opened).st_size)
    version, modified = page_version(page), page_modified(page)
    if version & 1 or version & DAMAGED or not is_settled(memoryview(page).cast("Q")):
        return None
    if (description.id, description.name) != (row.content, row.name):
        raise BadFile("its file describes another tensor")
    of_keys = {word: page_word(page, word) for word in KEY_WORDS}
    of_keys[HeaderWord.HEAP_CHECKED] = of_keys[HeaderWord.HEAP_END]
    # The log recorded which blocks scatters have changed. It is gone, so any block may have changed.
    changed = range(description.block_count) if version else ()
    checksums, sequence = _checksums(opened, description), version >> 1
    sources = [CopySource(description, sequence, modified, checksums, _reader(opened), changed, of_keys)]
    if row.keys is not None:
        about, _ = describe_keys(keys, row)
        sources.append(_keys_source(keys, row, modified, changed=range(about.block_count) if version else ()))
    return sources


def _key_words(rows: int, heap_end: int) -> dict[HeaderWord, int]:
    return {HeaderWord.ROWS: rows, HeaderWord.HEAP_END: heap_end, HeaderWord.HEAP_CHECKED: heap_end}


def _keys_source(
    fd: int, row: Row, modified: int, read: Read | None = None, changed: Collection[int] = ()
) -> CopySource:
    description, _ = describe_keys(fd, row)
    return CopySource(description, 0, modified, _checksums(fd, description), read or _reader(fd), changed)


def _open_file(path: Path, stack: ExitStack) -> int:
    try:
        fd = open_regular(path)
    except OSError as problem:
        raise BadFile(f"{path.name} cannot be read: {problem.strerror}") from None
    stack.callback(os.close, fd)
    return fd


def _checksums(fd: int, description: Description) -> bytes:
    return read_at(fd, description.checksums_at, 4 * description.block_count)


def _reader(fd: int) -> Read:
    return lambda begin, end: read_at(fd, PAGE + begin, end - begin)

"""The files that a backup copies for one content: the file of its rows, and its key file if it has keys.

All functions may raise BadFile and OSError.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack, nullcontext
from pathlib import Path

from app.store.catalogue.catalogue_rows import Row
from app.store.files.content_copy import CopySource, Read
from app.store.files.download_snapshots import Snapshot
from app.store.files.key_files import describe_keys
from app.store.files.mapped_tensor import MappedContent
from app.store.files.regular_file import open_regular, read_at
from app.store.files.tensor_file import (
    DAMAGED,
    KEY_WORDS,
    PAGE,
    BadFile,
    Description,
    HeaderWord,
    decode_page,
    is_settled,
    page_modified,
    page_version,
    page_word,
)
from app.store.scatters.dirty_blocks import dirty_blocks, dirty_key_blocks
from app.store.scatters.log_frames import BrokenLog
from app.store.scatters.scatter_log import all_records
from app.store.scatters.writable_tensor import WritableTensor


def present_sources(writable: WritableTensor, folder: Path, snapshots: Path, stack: ExitStack) -> list[CopySource]:
    """Return the files of a version's content as of now. Call it with the tensor's lock held; reading needs no lock."""
    row, words = writable.row, writable.words
    sequence, modified = writable.applied, words[HeaderWord.MODIFIED]
    of_keys = _key_words(words[HeaderWord.ROWS], words[HeaderWord.HEAP_END]) if row.keys is not None else {}
    fds = [_opened(folder / name, stack) for name in row.files[:2]]
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
    """Return the open files of a version's content that was replaced or removed and so no longer changes.

    `opened` and `keys` are the descriptors of its file and its key file; `keys` is -1 if it has none. Returns None if
    the files are in the middle of a change, damaged or unsettled.
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
    # Its log, which recorded the blocks that scatters changed, is gone: any block may have changed.
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


def _opened(path: Path, stack: ExitStack) -> int:
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

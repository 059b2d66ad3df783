"""Find damage in the files and the log of one version. Used by `check_store`, and in the background of a service:
startup checks only sizes and headers, and `verify` later compares all versions with their checksums.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_rows import Row
from app.store.files.key_files import ROWS_AT_ONCE, MappedKeys, describe_keys
from app.store.files.regular_file import NotRegular, open_regular
from app.store.files.tensor_file import (
    DAMAGED,
    PAGE,
    BadFile,
    Description,
    HeaderWord,
    decode_page,
    is_sound,
    page_version,
    page_word,
)
from app.store.processes.directory_lock import ProcessGroup, StateWord
from app.store.processes.store_locks import StoreLocks
from app.store.scatters.log_frames import BrokenLog, Entry, dirty_blocks, dirty_key_blocks
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.scatter_log import all_records, full_path


def lost_rows(folder: Path, row: Row, count: int) -> Iterator[int]:
    """Look up the keys of the first `count` rows in the index, in steps.

    For each step, yields the first row that the index does not find, or -1. `folder` is the tensors folder. Raises
    BadFile and OSError.
    """
    mapped = MappedKeys(folder, row)
    keys = mapped.of(min(count, mapped.layout.capacity))
    for start in range(0, keys.count, ROWS_AT_ONCE):
        yield keys.first_lost(start, min(start + ROWS_AT_ONCE, keys.count))


_FILE_NAME: Final = re.compile(r"[^/\0]+")
_BLOCKS_PER_PAUSE: Final = 16
_OF: Final = "", "of its keys "
"""Words in messages that say that a block belongs to the file of rows, or to the key file."""
Pause = Callable[[float], bool]


class UnreadableFile(BadFile):
    """The system could not read the file. The file itself may be sound."""


class _CheckCancelled(Exception):
    """The caller has ended the check."""


def check_content(
    folder: Path, locks: StoreLocks, catalogue: Catalogue, row: Row, pause: Pause = lambda _: False
) -> None:
    """Raise BadFile if a version of the store in `folder` exists and is damaged. May raise OSError.

    Blocks are compared with their checksums, and keys are looked up, without holding a lock, so that changes continue.
    Between steps, `pause` is called with the duration of the last step in seconds; if it returns True, the check ends.
    A block that does not match may have changed since the last checkpoint, so it is checked again while holding the
    lock. The log is also checked while holding the lock.
    """
    if {row.file, row.content} & {"", ".", ".."} or not _FILE_NAME.fullmatch(row.file + row.content):
        raise BadFile("the catalogue names no file of the store for it")
    log = folder / "logs" / row.content
    suspects: list[list[int]] = [[], []]
    is_index_sound = True
    try:
        fd = open_regular(folder / "tensors" / row.file)
        try:
            suspects[0] = _wrong_blocks(fd, _description(fd, row), pause)
            page = os.pread(fd, PAGE, 0)
        finally:
            os.close(fd)
        if row.keys is not None:
            suspects[1] = _wrong_key_blocks(folder, row, pause)
        is_index_sound = row.keys is None or _index_is_complete(folder, row, page_word(page, HeaderWord.ROWS), pause)
    except _CheckCancelled:
        return
    except (BadFile, OSError):
        pass  # this is checked again below
    else:
        is_clean = is_index_sound and not any(suspects) and not page_version(page) & (DAMAGED | 1)
        if is_clean and not any(map(os.path.lexists, (log, full_path(log)))):
            return
    with locks.tensor(row.name):
        if catalogue.row(row.name, row.number) != row:
            return
        try:
            _check_within_lock(folder, row, suspects)
        except FileNotFoundError as error:
            is_rows = error.filename is None or Path(error.filename).name == row.file
            raise UnreadableFile("its file is missing" if is_rows else "a file of its keys is missing") from None
        except OSError as error:
            raise UnreadableFile(f"its file cannot be read: {error.strerror}") from None


def _wrong_blocks(fd: int, description: Description, pause: Pause) -> list[int]:
    """Return the blocks that do not match their checksums. Raises _CheckCancelled."""
    wrong: list[int] = []
    for first in range(0, description.block_count, _BLOCKS_PER_PAUSE):
        began = perf_counter()
        blocks = range(first, min(first + _BLOCKS_PER_PAUSE, description.block_count))
        wrong += [block for block in blocks if not is_sound(fd, description, block)]
        if pause(perf_counter() - began):
            raise _CheckCancelled
    return wrong


def _wrong_key_blocks(folder: Path, row: Row, pause: Pause) -> list[int]:
    """Return the key file's blocks that do not match their checksums. Raises _CheckCancelled, BadFile and OSError."""
    fd = open_regular(folder / "tensors" / row.key_file)
    try:
        return _wrong_blocks(fd, describe_keys(fd, row)[0], pause)
    finally:
        os.close(fd)


def _index_is_complete(folder: Path, row: Row, rows: int, pause: Pause) -> bool:
    """Return whether the index finds each of the first `rows` rows. Raises _CheckCancelled, BadFile and OSError."""
    began = perf_counter()
    for lost in lost_rows(folder / "tensors", row, rows):
        if lost >= 0:
            return False
        if pause(perf_counter() - began):
            raise _CheckCancelled
        began = perf_counter()
    return True


def _check_within_lock(folder: Path, row: Row, suspects: list[list[int]]) -> None:
    """Check the content again while holding its tensor's lock. Raises BadFile and OSError."""
    tensors, log = folder / "tensors", folder / "logs" / row.content
    fd = open_regular(tensors / row.file)
    try:
        description, page = _description(fd, row), os.pread(fd, PAGE, 0)
        entries = _entries(log, page_version(page))
        try:
            _check_suspects(fd, description, suspects[0], dirty_blocks(all_records(log)), _OF[0])
            if row.keys is not None:
                _check_keys_within_lock(tensors, row, log, page, suspects[1])
        except BrokenLog:
            raise BadFile("its log was damaged meanwhile") from None
    finally:
        os.close(fd)
    if row.keys is not None and all(entry.size is None for entry in entries):
        # If the log contains key changes, startup after a crash rebuilds the index anyway.
        for lost in lost_rows(tensors, row, page_word(page, HeaderWord.ROWS)):
            if lost >= 0:
                raise BadFile(f"the index of its keys does not lead to row {lost}")


def _check_keys_within_lock(tensors: Path, row: Row, log: Path, page: bytes, suspects: list[int]) -> None:
    fd = open_regular(tensors / row.key_file)
    try:
        description, layout = describe_keys(fd, row)
        if page_word(page, HeaderWord.ROWS) > layout.capacity:
            raise BadFile("its file says that it has more rows than there is room for")
        heap = page_word(page, HeaderWord.HEAP_CHECKED), page_word(page, HeaderWord.HEAP_END)
        changed = dirty_key_blocks(all_records(log), layout, *heap)
        _check_suspects(fd, description, suspects, changed, _OF[1])
    finally:
        os.close(fd)


def _check_suspects(fd: int, description: Description, suspects: list[int], changed: Collection[int], of: str) -> None:
    wrong = [block for block in suspects if block not in changed and not is_sound(fd, description, block)]
    if wrong:
        raise BadFile(f"block {wrong[0]} {of}({len(wrong)} in all) does not match its checksum")


def _entries(log: Path, version: int) -> list[Entry]:
    """Return the entries of a log. Raises BadFile if the log does not match the content's version."""
    if version & DAMAGED:
        raise BadFile("the service has found it damaged and does not serve it")
    try:
        entries = [record.entry for record in all_records(log)]
    except BrokenLog:
        raise BadFile("its log is damaged before its end: acknowledged changes are lost") from None
    except NotRegular as problem:
        raise BadFile(f"its log cannot be read: {problem.strerror}") from None
    sequences = [entry.sequence for entry in entries]
    if sequences and min(sequences) > (version >> 1) + 1:
        raise BadFile(f"its log begins with change {min(sequences)}, and the file has {version >> 1} changes")
    for one, following in pairwise(entries):
        if one.epoch and following.sequence != one.sequence + 1:
            raise BadFile(f"its log lacks change {one.sequence + 1}")
    if version & 1 and max(sequences, default=0) <= version >> 1:
        raise BadFile("a change was cut short, and the log does not have it")
    return entries


def _description(fd: int, row: Row) -> Description:
    """Return the file's description. Raises BadFile if it does not match the row."""
    description = decode_page(os.pread(fd, PAGE, 0), os.fstat(fd).st_size)
    if (description.id, description.name) != (row.content, row.name):
        raise BadFile("its file describes another tensor")
    about = row.dtype, row.shape, row.size, row.file_size, row.sha256
    found = (
        description.dtype, description.shape, description.size, description.file_size, description.sha256,
    )  # fmt: skip
    if about != found:
        raise BadFile(
            f"the catalogue says {row.dtype} {list(row.shape)} of {row.size} bytes, and the file "
            f"{description.dtype} {list(description.shape)} of {description.size}, or another hash"
        )
    return description


logger = logging.getLogger("gathernd")


def verify(
    folder: Path,
    group: ProcessGroup,
    catalogue: Catalogue,
    index: CatalogueCache,
    logs: ReplayedLogs,
    stop: Event,
    pause_ratio: float,
) -> None:
    """Verify all versions, unless a process of the group has done so or is doing so; see `LocalStore.verify`."""

    def mark_damaged(row: Row, why: str) -> None:
        with group.locks.tensor(row.name):
            if index.find(row.reference) == row:
                with suppress(GatherError), logs.open(row) as writable:
                    logger.error("the content of %s is damaged: %s", row.reference, why)
                    writable.mark_damaged()

    with group.locks.try_verification() as free:
        if not free or group.state[StateWord.VERIFIED]:
            return
        for row in sorted(index.rows(), key=lambda row: (row.name, row.number)):
            with suppress(OSError):
                try:
                    check_content(folder, group.locks, catalogue, row, lambda seconds: stop.wait(seconds * pause_ratio))
                except BadFile as problem:
                    if not isinstance(problem, UnreadableFile):
                        mark_damaged(row, str(problem))
            if stop.is_set():
                return
        group.state[StateWord.VERIFIED] = 1

"""Finding damage in the file of one content and in its log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Final

from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import NotRegular, open_regular
from app.store.files.tensor_file import DAMAGED, PAGE, BadFile, Description, decode_page, is_sound, page_version
from app.store.maintenance.check_keys import check_keys
from app.store.processes.store_locks import StoreLocks
from app.store.scatters.log_frames import BrokenLog, Entry
from app.store.scatters.scatter_log import all_records, full_path
from app.store.scatters.writable_tensor import dirty_blocks

_FILE_NAME: Final = re.compile(r"[^/\0]+")
_BLOCKS_PER_PAUSE: Final = 16


class UnreadableFile(BadFile):
    """The system does not give the file, which may be its own fault."""


def check_content(
    folder: Path, locks: StoreLocks, catalogue: Catalogue, row: Row, pause: Callable[[float], bool] = lambda _: False
) -> None:
    """Raises BadFile unless a version of the store in `folder` is sound, or is there no more. Raises OSError.

    Its blocks are compared with their checksums without a lock, so that scatters go on; between them `pause` is given
    the seconds of work, and its True ends the check. What looks wrong then may have been changed since the last
    checkpoint, and so it is looked at once more within the lock, as is the log.
    """
    if {row.file, row.content} & {"", ".", ".."} or not _FILE_NAME.fullmatch(row.file + row.content):
        raise BadFile("the catalogue names no file of the store for it")
    if _ends_in_keys(folder / "tensors", locks, catalogue, row, pause):
        return
    log = folder / "logs" / row.content
    suspects: list[int] = []
    version = DAMAGED
    try:
        fd = open_regular(folder / "tensors" / row.file)
        try:
            description = _description(fd, row)
            for first in range(0, description.block_count, _BLOCKS_PER_PAUSE):
                began = perf_counter()
                blocks = range(first, min(first + _BLOCKS_PER_PAUSE, description.block_count))
                suspects += [block for block in blocks if not is_sound(fd, description, block)]
                if pause(perf_counter() - began):
                    return
            version = page_version(os.pread(fd, PAGE, 0))
        finally:
            os.close(fd)
    except (BadFile, OSError):
        pass  # looked at again below
    else:
        if not suspects and not version & (DAMAGED | 1) and not any(map(os.path.lexists, (log, full_path(log)))):
            return
    with locks.tensor(row.name):
        if catalogue.row(row.name, row.number) != row:
            return
        try:
            _check_within_lock(folder, row, suspects)
        except FileNotFoundError:
            raise UnreadableFile("its file is missing") from None
        except OSError as error:
            raise UnreadableFile(f"its file cannot be read: {error.strerror}") from None


def _ends_in_keys(
    folder: Path, locks: StoreLocks, catalogue: Catalogue, row: Row, pause: Callable[[float], bool]
) -> bool:
    """Check the keys of a version; whether the check ends with them, since `pause` says so or the version is gone.

    Raises BadFile.
    """
    steps = check_keys(folder, row)
    began = perf_counter()
    try:
        for _ in steps:
            if pause(perf_counter() - began):
                return True
            began = perf_counter()
    except (BadFile, OSError) as problem:
        with locks.tensor(row.name):
            if catalogue.row(row.name, row.number) != row:
                return True
        if isinstance(problem, FileNotFoundError):
            raise UnreadableFile("a file of its keys is missing") from None
        if isinstance(problem, OSError):
            raise UnreadableFile(f"a file of its keys cannot be read: {problem.strerror}") from None
        raise
    return False


def _check_within_lock(folder: Path, row: Row, suspects: list[int]) -> None:
    """Raises BadFile and OSError."""
    fd = open_regular(folder / "tensors" / row.file)
    try:
        description = _description(fd, row)
        version = page_version(os.pread(fd, PAGE, 0))
        if version & DAMAGED:
            raise BadFile("the service has found it damaged and does not serve it")
        changed: set[int] = set()
        entries: list[Entry] = []
        try:
            for record in all_records(folder / "logs" / row.content):
                changed |= dirty_blocks([record])
                entries.append(record.entry)
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
        wrong = [block for block in suspects if block not in changed and not is_sound(fd, description, block)]
        if wrong:
            raise BadFile(f"block {wrong[0]} ({len(wrong)} in all) does not match its checksum")
    finally:
        os.close(fd)


def _description(fd: int, row: Row) -> Description:
    """The file's description, which must be the row's. Raises BadFile."""
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

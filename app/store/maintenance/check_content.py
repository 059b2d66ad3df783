"""What is wrong with the file of one content and with its log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import NotRegular, open_regular
from app.store.files.tensor_file import DAMAGED, PAGE, BadFile, Description, decode_page, is_sound, page_version
from app.store.maintenance.unclaimed_store import UnclaimedStore
from app.store.scatters.scatter_log import BrokenLog, ScatterLog
from app.store.scatters.writable_tensor import dirty_blocks

_FILE_NAME: Final = re.compile(r"[^/\0]+")


def content_problem(store: UnclaimedStore, row: Row) -> str | None:
    """What is wrong with a version, None where it is sound, or is there no more. Raises OSError.

    Its blocks are compared with their checksums without a lock, so that scatters go on. What looks wrong then may have
    been changed since the last checkpoint, and so it is looked at once more within the lock, as is the log.
    """
    if {row.file, row.content} & {"", ".", ".."} or not _FILE_NAME.fullmatch(row.file + row.content):
        return "the catalogue names no file of the store for it"
    suspects: list[int] = []
    version = DAMAGED
    try:
        fd = open_regular(store.tensor_folder / row.file)
        try:
            description = _description(fd, row)
            suspects = _wrong_blocks(fd, description, range(description.block_count))
            version = page_version(os.pread(fd, PAGE, 0))
        finally:
            os.close(fd)
    except (BadFile, OSError):
        pass  # looked at again below
    else:
        if not suspects and not version & (DAMAGED | 1) and not os.path.lexists(store.log_folder / row.content):
            return None
    with store.locks.tensor(row.name):
        if store.catalogue.row(row.name, row.version) != row:
            return None
        try:
            return _problem_within_lock(store, row, suspects)
        except BadFile as problem:
            return str(problem)
        except FileNotFoundError:
            return "its file is missing"
        except OSError as error:
            return f"its file cannot be read: {error.strerror}"


def _problem_within_lock(store: UnclaimedStore, row: Row, suspects: list[int]) -> str | None:
    """Raises BadFile and OSError."""
    fd = open_regular(store.tensor_folder / row.file)
    try:
        description = _description(fd, row)
        version = page_version(os.pread(fd, PAGE, 0))
        if version & DAMAGED:
            return "the service has found it damaged and does not serve it"
        try:
            records = ScatterLog(store.log_folder / row.content).read(repair=False)
        except BrokenLog:
            return "its log is damaged before its end: acknowledged changes are lost"
        except NotRegular as problem:
            return f"its log cannot be read: {problem.strerror}"
        sequences = [record.entry.sequence for record in records]
        if sequences and min(sequences) > (version >> 1) + 1:
            return f"its log begins with change {min(sequences)}, and the file has {version >> 1} changes"
        if version & 1 and max(sequences, default=0) <= version >> 1:
            return "a change was cut short, and the log does not have it"
        changed = dirty_blocks(records)
        wrong = [block for block in _wrong_blocks(fd, description, suspects) if block not in changed]
        if wrong:
            return f"block {wrong[0]} ({len(wrong)} in all) does not match its checksum"
        return None
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


def _wrong_blocks(fd: int, description: Description, blocks: Iterable[int]) -> list[int]:
    """Those of `blocks` that do not match their checksums."""
    return [block for block in blocks if not is_sound(fd, description, block)]

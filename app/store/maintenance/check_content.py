"""What is wrong with the file of one content and with its log."""

from __future__ import annotations

import os
import re
import zlib
from typing import Final

from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import NotRegular, open_regular
from app.store.files.tensor_file import BLOCK, DAMAGED, PAGE, BadFile, Description, decode_page, page_version
from app.store.maintenance.unclaimed_store import UnclaimedStore
from app.store.scatters.scatter_log import BrokenLog, Record, ScatterLog, read_at
from app.store.scatters.writable_tensor import dirty_blocks

_BLOCKS_AT_ONCE: Final = 16
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
            suspects = _wrong_blocks(fd, _description(fd, row), None)
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
        sequences = [record.entry.sequence for record in records if record.entry.sequence]
        if sequences and min(sequences) > (version >> 1) + 1:
            return f"its log begins with change {min(sequences)}, and the file has {version >> 1} changes"
        if version & 1 and max(sequences, default=0) <= version >> 1:
            return "a change was cut short, and the log does not have it"
        changed = _changed_blocks(records)
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


def _changed_blocks(records: list[Record]) -> set[int]:
    """The blocks that the log's changes are in, whose checksums in the file may be older."""
    return set().union(*map(dirty_blocks, records))


def _wrong_blocks(fd: int, description: Description, blocks: list[int] | None) -> list[int]:
    """Those of `blocks`, None for all, that do not match their checksums."""
    table = memoryview(read_at(fd, description.checksums_at, 4 * description.block_count)).cast("I")
    if len(table) != description.block_count:
        raise BadFile("the file ends within its checksums")
    wrong = []
    if blocks is not None:
        for block in blocks:
            begin, end = description.block_span(block)
            if zlib.crc32(read_at(fd, begin, end - begin)) != table[block]:
                wrong.append(block)
        return wrong
    end = description.checksums_at
    for first in range(0, description.block_count, _BLOCKS_AT_ONCE):
        begin = PAGE + first * BLOCK
        with memoryview(read_at(fd, begin, min(_BLOCKS_AT_ONCE * BLOCK, end - begin))) as piece:
            for at in range(0, len(piece), BLOCK):
                block = first + at // BLOCK
                if zlib.crc32(piece[at : at + BLOCK]) != table[block]:
                    wrong.append(block)
    return wrong

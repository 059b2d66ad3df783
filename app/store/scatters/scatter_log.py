"""The redo log of a tensor that scatters change: a scatter is acknowledged once it is in here.

A record holds the new values of the rows that a scatter wrote, not what was added to the old ones, so that replaying it
any number of times, over content that has none, some or all of it, gives the same. It also holds the request's
Idempotency-Key with the answer.

Records that reach the disk by one fsync stand in one frame under one checksum: a loss of power meanwhile leaves all of
them or none, so that only the last frame of a log can be torn.

A log that has grown long is set aside as `ID.full`, and the next record begins a new one: so a checkpoint reads a file
that does not change, while scatters go on. All records in `ID.full` are durable and applied.

    file: magic and eight random bytes, the log's id, by which a process sees that the log is not the one it read before
    frame: magic, CRC-32 of what follows, length of the JSON, length of the rows; JSON, a list of entries; then for each
        of them its row numbers (uint64) and its rows
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from struct import Struct
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.store.catalogue.catalogue_rows import AnsweredKey
from app.store.files import disk_writes
from app.store.files.regular_file import mode_of, open_regular, read_at

_FRAME: Final = Struct("<4sIIQ")
_FRAME_MAGIC: Final = b"redo"
_CHECKED_FROM: Final = 8
_LOG_MAGIC: Final = b"redolog1"
_LOG_ID_BYTES: Final = 16
FULL: Final = ".full"
"""Suffix of the name of a log that was set aside."""


class BrokenLog(Exception):
    """A record within the log is damaged, while later ones are not: acknowledged changes are lost."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of a record. `time` is in nanoseconds since 1970; `width` is the bytes of a row.

    `clock` is the time by the store's clock (see `idempotency`). `scope` is the name by which the request named the
    tensor; `version` is the number of the version.
    """

    sequence: int
    time: int
    key: str | None
    digest: str
    etag: str
    count: int = 0
    width: int = 0
    clock: int = 0
    scope: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """An entry and its rows: row `rows[i]` of the content becomes the bytes `values[i]`."""

    entry: Entry
    rows: NDArray[np.uint64]
    values: NDArray[np.uint8]


_NO_ROWS: Final = np.empty(0, np.uint64)
_NO_VALUES: Final = np.empty((0, 0), np.uint8)


def changed_parts(records: Iterable[Record], size: int) -> NDArray[np.int64]:
    """The numbers of the parts of the content, of `size` bytes each, that records change: each once, in order."""
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for record in records:
        width = record.entry.width
        if not len(record.rows) or not width:
            continue
        begin = record.rows.astype(np.int64) * width
        first, last = begin // size, (begin + width - 1) // size
        found.append(first)
        if (last > first).any():
            spans = last - first + 1
            starts = np.cumsum(spans) - spans
            found.append(np.repeat(first - starts, spans) + np.arange(int(spans.sum())))
    return np.unique(np.concatenate(found))


def encode(records: Sequence[Record]) -> bytes:
    """The bytes of a frame with these records."""
    text = orjson.dumps([asdict(record.entry) for record in records])
    rows = [part.tobytes() for record in records for part in (record.rows, record.values)]
    rest = b"".join((Struct("<IQ").pack(len(text), sum(map(len, rows))), text, *rows))
    return _FRAME_MAGIC + zlib.crc32(rest).to_bytes(4, "little") + rest


def new_log_id() -> bytes:
    """The first bytes of a new log."""
    return _LOG_MAGIC + os.urandom(_LOG_ID_BYTES - len(_LOG_MAGIC))


class ScatterLog:
    """The log at `path`, as far as this process has read it. All methods are for the tensor's lock.

    `keys` are the Idempotency-Keys in it, by their scope and key; `end` is how far the log has been read, in bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[tuple[str, str], AnsweredKey] = {}
        self.last_sequence: int | None = None
        self.end = 0
        self.log_id = b""
        """Tells this log from the one that was here before a checkpoint; empty while there is none."""

    def read(self, *, repair: bool = True) -> list[Record]:
        """The records that this object has not read yet; cuts off a frame that a crash has torn.

        Without `repair` such a frame stays. Raises BrokenLog and OSError.
        """
        try:
            fd = open_regular(self.path, os.O_RDWR if repair else os.O_RDONLY)
        except FileNotFoundError:
            self._reset()
            return []
        try:
            size, head = os.fstat(fd).st_size, os.pread(fd, _LOG_ID_BYTES, 0)
            if head != self.log_id or size < self.end:
                self._reset()
                if len(head) == _LOG_ID_BYTES and head.startswith(_LOG_MAGIC):
                    self.log_id = head
                    self.end = _LOG_ID_BYTES
            records = list(self._records(fd, size)) if self.end else []
            if self.end == _LOG_ID_BYTES:
                # Its writer may have died before the file's name was durable: a log without a record counts as missing.
                self._reset()
            if self.end < size:
                # The last frame may be torn: it was never acknowledged. A torn frame before others is damage.
                if _holds_record(read_at(fd, self.end, size - self.end)[1:]):
                    raise BrokenLog
                if repair:
                    disk_writes.truncate(fd, self.end)
                    disk_writes.fsync(fd)
        finally:
            os.close(fd)
        return records

    def _reset(self) -> None:
        self.keys.clear()
        self.last_sequence = None
        self.end = 0
        self.log_id = b""

    def _records(self, fd: int, size: int) -> Iterator[Record]:
        while self.end + _FRAME.size <= size:
            magic, crc, text_size, rows_size = _FRAME.unpack(os.pread(fd, _FRAME.size, self.end))
            length = _FRAME.size + text_size + rows_size
            whole = magic == _FRAME_MAGIC and self.end + length <= size
            body = read_at(fd, self.end + _CHECKED_FROM, length - _CHECKED_FROM) if whole else b""
            if not whole or zlib.crc32(body) != crc:
                return
            self.end += length
            for record in _decode(body, text_size):
                self._note(record.entry)
                yield record

    def _note(self, entry: Entry) -> None:
        if entry.key is not None:
            self.keys[entry.scope, entry.key] = AnsweredKey(
                entry.scope, entry.key, entry.digest, entry.etag, entry.clock, entry.version
            )
        self.last_sequence = entry.sequence

    def append(self, records: Sequence[Record]) -> None:
        """Add records as one frame, durably, or raise OSError and leave the log as it was.

        `read` comes first: raises RuntimeError where another process has added records that were not read.
        """
        content = encode(records)
        fresh = not self.end
        head = self.log_id
        if fresh:
            head = new_log_id()
            content = head + content
        fd = disk_writes.open_or_create(self.path)
        try:
            if os.fstat(fd).st_size != self.end:
                raise RuntimeError(f"the log {self.path} has not been read to its end")
            try:
                disk_writes.write_at(fd, content, self.end)
                disk_writes.fsync(fd)
                if fresh:
                    disk_writes.fsync_folder(self.path.parent)
            except OSError:
                _undo_append(fd, self.end)
                raise
            self.log_id = head
        finally:
            os.close(fd)
        for record in records:
            self._note(record.entry)
        self.end += len(content)

    def make_durable(self) -> None:
        """Make durable what `read` has found, whose writer may have died before its fsync. Raises OSError."""
        fd = disk_writes.open_or_create(self.path)
        try:
            # Written again, since after a failed fsync the bytes are in memory alone, and the next fsync succeeds.
            disk_writes.write_at(fd, read_at(fd, 0, self.end), 0)
            disk_writes.fsync(fd)
        finally:
            os.close(fd)
        disk_writes.fsync_folder(self.path.parent)

    def set_aside(self) -> None:
        """Rename the log, durably, so that the next record begins a new one. Raises OSError."""
        disk_writes.rename(self.path, full_path(self.path))
        self._reset()
        disk_writes.fsync_folder(self.path.parent)


def full_path(path: Path) -> Path:
    """Where the log at `path` is set aside."""
    return path.with_name(path.name + FULL)


def full_records(path: Path) -> list[Record]:
    """The records that were set aside from the log at `path`. Raises BrokenLog and OSError."""
    return ScatterLog(full_path(path)).read(repair=False)


def all_records(path: Path) -> list[Record]:
    """The records that were set aside from the log at `path`, and those of the log. Raises BrokenLog and OSError."""
    return [*full_records(path), *ScatterLog(path).read(repair=False)]


def remove_full(path: Path) -> None:
    """Remove what was set aside from the log at `path`, if anything was, durably. Raises OSError."""
    if mode_of(full_path(path)) is not None:
        disk_writes.unlink(full_path(path))
        disk_writes.fsync_folder(path.parent)


def _undo_append(fd: int, end: int) -> None:
    """Cut off what was written after `end`, durably. Raises OSError.

    Where it cannot be cut it is overwritten with zeros, which are no record; the next reader of the log cuts them off.
    """
    try:
        disk_writes.truncate(fd, end)
    except OSError:
        disk_writes.write_at(fd, bytes(os.fstat(fd).st_size - end), end)
        raise
    finally:
        disk_writes.fsync(fd)


def _holds_record(content: bytes) -> bool:
    """Whether a sound record stands anywhere in `content`."""
    place = content.find(_FRAME_MAGIC)
    while place >= 0:
        if place + _FRAME.size <= len(content):
            _, crc, text_size, rows_size = _FRAME.unpack_from(content, place)
            end = place + _FRAME.size + text_size + rows_size
            if end <= len(content) and zlib.crc32(content[place + _CHECKED_FROM : end]) == crc:
                return True
        place = content.find(_FRAME_MAGIC, place + 1)
    return False


def _decode(body: bytes, text_size: int) -> Iterator[Record]:
    """The records of a frame; unknown members of an entry are ignored. Raises BrokenLog."""
    place = _FRAME.size - _CHECKED_FROM
    try:
        entries: list[dict[str, Any]] = orjson.loads(body[place : place + text_size])
        known = [Entry(**{name: entry[name] for name in _MEMBERS & entry.keys()}) for entry in entries]
    except (ValueError, TypeError, AttributeError):
        raise BrokenLog from None
    place += text_size
    if place + sum(entry.count * (8 + entry.width) for entry in known) > len(body):
        raise BrokenLog
    for entry in known:
        if not entry.count:
            yield Record(entry, _NO_ROWS, _NO_VALUES)
            continue
        rows = np.frombuffer(body, np.uint64, entry.count, place)
        place += rows.nbytes
        values = np.frombuffer(body, np.uint8, entry.count * entry.width, place)
        place += values.nbytes
        yield Record(entry, rows, values.reshape(entry.count, entry.width))


_MEMBERS: Final = frozenset(field.name for field in fields(Entry))

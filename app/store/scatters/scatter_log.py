"""The redo log of a tensor that scatters change: a scatter is acknowledged once it is in here.

A record holds the new values of the rows that a scatter wrote, not what was added to the old ones, so that replaying it
any number of times, over content that has none, some or all of it, gives the same. It also holds the request's
Idempotency-Key with the answer.

Records that reach the disk by one fsync stand in one frame under one checksum: a loss of power meanwhile leaves all of
them or none, so that only the last frame of a log can be torn.

A log that has grown long is set aside as `ID.full`, and the next record begins a new one: so a checkpoint reads a file
that does not change, while scatters go on. All records in `ID.full` are durable and applied, but for copies of records
that are in the new log as well.

Records of a replicated content (see `replicated_contents`) have an epoch. Those that are not applied yet are the log's
tail: a later primary may have the tail dropped, and then the log gets another id.

    file: magic and eight random bytes, the log's id, by which a process sees that the log is not the one it read
        before; then frames, see `log_frames`
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.store.catalogue.catalogue_rows import AnsweredKey
from app.store.files import disk_writes
from app.store.files.regular_file import mode_of, open_regular, read_at
from app.store.row_counts import RowCounts
from app.store.scatters.log_frames import BrokenLog, Entry, Record, decode, encode, frame_at, frames_in, holds_record

_LOG_MAGIC: Final = b"redolog1"
LOG_ID_BYTES: Final = 16
"""Bytes before the first frame of a log."""
FULL: Final = ".full"
"""Suffix of the name of a log that was set aside."""
NEW: Final = ".new"
"""Suffix of a log that is being written to replace another."""
_LANDMARK_BYTES: Final = 1 << 18
"""Bytes of a log of replicated records for each place in it that is remembered."""
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PlacedEntry:
    """An entry of a log, and where the frame that holds it begins and ends in the file."""

    entry: Entry
    begin: int
    end: int


class ScatterLog:
    """The log at `path`, as far as this process has read it. All methods are for the tensor's lock.

    `keys` are the Idempotency-Keys in it, by their scope and key; `end` is how far the log has been read, in bytes.
    `tail` has the entries with an epoch that `settle` has not been told of; their keys are not in `keys`. `landmarks`
    are some places where frames with an epoch begin: the first sequence of the frame and its offset, in order; the
    first of those frames is among them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[tuple[str, str], AnsweredKey] = {}
        self.last_sequence: int | None = None
        self.end = 0
        self.tail: deque[PlacedEntry] = deque()
        self.landmarks: list[tuple[int, int]] = []
        self._aside: ScatterLog | None = None
        self.log_id = b""
        """Tells this log from the one that was here before a checkpoint; empty while there is none."""

    def read(self, *, repair: bool = True) -> None:
        """Read what is new, and cut off a frame that a crash has torn; without `repair` it stays.

        Raises BrokenLog and OSError.
        """
        deque(self.follow(repair=repair), maxlen=0)

    def follow(self, *, repair: bool = True) -> Generator[Record, None, None]:
        """The records that `read` reads, one by one; all have to be asked for. Raises what `read` raises."""
        try:
            fd = open_regular(self.path, os.O_RDWR if repair else os.O_RDONLY)
        except FileNotFoundError:
            self._reset()
            return
        try:
            size, head = os.fstat(fd).st_size, os.pread(fd, LOG_ID_BYTES, 0)
            if head != self.log_id or size < self.end:
                self._reset()
                if len(head) == LOG_ID_BYTES and head.startswith(_LOG_MAGIC):
                    self.log_id = head
                    self.end = LOG_ID_BYTES
            if self.end:
                yield from self._records(fd, size)
            if self.end == LOG_ID_BYTES:
                # Its writer may have died before the file's name was durable: a log without a record counts as missing.
                self._reset()
            if self.end < size:
                # The last frame may be torn: it was never acknowledged. A torn frame before others is damage.
                if holds_record(read_at(fd, self.end, size - self.end)[1:]):
                    raise BrokenLog
                if repair:
                    disk_writes.truncate(fd, self.end)
                    disk_writes.fsync(fd)
        finally:
            os.close(fd)

    def _reset(self) -> None:
        self.keys.clear()
        self.tail.clear()
        self.landmarks.clear()
        self.last_sequence = None
        self.end = 0
        self.log_id = b""

    def _records(self, fd: int, size: int) -> Iterator[Record]:
        while True:
            begin = self.end
            frame = frame_at(fd, begin, size)
            if not frame:
                return
            self.end += len(frame)
            for record in decode(frame):
                self._note(record.entry, begin)
                yield record

    def _note(self, entry: Entry, begin: int) -> None:
        """Note an entry of the frame from `begin` to `end`."""
        if entry.epoch:
            if not self.landmarks or begin >= self.landmarks[-1][1] + _LANDMARK_BYTES:
                self.landmarks.append((entry.sequence, begin))
            self.tail.append(PlacedEntry(entry, begin, self.end))
        elif entry.key is not None:
            self._note_key(entry)
        self.last_sequence = entry.sequence

    def _note_key(self, entry: Entry) -> None:
        assert entry.key is not None
        self.keys[entry.scope, entry.key] = AnsweredKey(
            entry.scope, entry.key, entry.digest, entry.etag, entry.clock, entry.version,
            None if entry.counts is None else RowCounts(*entry.counts),
        )  # fmt: skip

    def settle(self, applied: int) -> None:
        """Take the entries up to `applied`, the sequence of the last record that is applied, from the tail."""
        while self.tail and self.tail[0].entry.sequence <= applied:
            entry = self.tail.popleft().entry
            if entry.key is not None:
                self._note_key(entry)

    @property
    def settled_end(self) -> int:
        """Where the frame begins in which the tail does; the end of the log if it has no tail."""
        return self.tail[0].begin if self.tail else self.end

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
        begin = self.end or LOG_ID_BYTES
        self.end += len(content)
        for record in records:
            self._note(record.entry, begin)

    def read_frame(self, placed: PlacedEntry) -> list[Record]:
        """The records of the frame that holds an entry. Raises BrokenLog and OSError."""
        return list(decode(self.read_bytes(placed.begin, placed.end)))

    def read_bytes(self, begin: int, end: int) -> bytes:
        """Whole frames of the log from one offset to another. Raises BrokenLog and OSError."""
        fd = open_regular(self.path)
        try:
            content = read_at(fd, begin, end - begin)
        finally:
            os.close(fd)
        return b"".join(frames_in(content))

    def cut(self, offset: int) -> None:
        """Cut off frames of the tail, from the one that begins at `offset` on, durably. Raises OSError.

        The log gets another id first: by that other processes see that frames that they have read may be gone, also
        when others have been appended since. If this process dies in between, they read the same frames again.
        """
        new_id = new_log_id()
        fd = disk_writes.open_or_create(self.path)
        try:
            disk_writes.write_at(fd, new_id, 0)
            disk_writes.truncate(fd, 0 if offset <= LOG_ID_BYTES else offset)
            disk_writes.fsync(fd)
        except OSError:
            self._reset()  # to be read again
            raise
        finally:
            os.close(fd)
        if offset <= LOG_ID_BYTES:
            self._reset()
            return
        while self.tail and self.tail[-1].begin >= offset:
            self.last_sequence = self.tail.pop().entry.sequence - 1
        while self.landmarks and self.landmarks[-1][1] >= offset:
            self.landmarks.pop()
        self.log_id, self.end = new_id, offset

    def replace(self, *frames: bytes, aside: bool = False) -> None:
        """Put a log with these frames in the place of this one, durably; `aside` sets this one aside. Raises OSError.

        Whenever the process dies, the log is the old one or the new one, whole. What was read is read again.
        """
        new = new_path(self.path)
        disk_writes.unlink(new)  # of a process that died
        try:
            fd = disk_writes.create(new)
            try:
                disk_writes.write_at(fd, b"".join((new_log_id(), *frames)), 0)
                disk_writes.fsync(fd)
            finally:
                os.close(fd)
            if aside:
                disk_writes.link(self.path, full_path(self.path))
            disk_writes.rename(new, self.path)
        except OSError:
            with suppress(OSError):
                disk_writes.unlink(new)  # the disk may be full
            raise
        disk_writes.fsync_folder(self.path.parent)
        self.reread()

    def aside(self) -> ScatterLog:
        """The log that was set aside, read to its end, for its landmarks. Raises BrokenLog and OSError."""
        if self._aside is None:
            self._aside = ScatterLog(full_path(self.path))
        self._aside.read(repair=False)
        self._aside.tail.clear()
        return self._aside

    def reread(self) -> None:
        """Read the log from its start, for what it has by now. Raises BrokenLog and OSError."""
        self._reset()
        self.read()

    def make_durable(self, begin: int = 0) -> None:
        """Make durable what `read` has found, whose writer may have died before its fsync. Raises OSError.

        `begin` is where that may begin: each frame but the last was durable before the next one was written.
        """
        if not self.end:
            return
        fd = disk_writes.open_or_create(self.path)
        try:
            # Written again, since after a failed fsync the bytes are in memory alone, and the next fsync succeeds.
            for place in range(begin, self.end, _PIECE_BYTES):
                disk_writes.write_at(fd, read_at(fd, place, min(_PIECE_BYTES, self.end - place)), place)
            disk_writes.fsync(fd)
        finally:
            os.close(fd)
        disk_writes.fsync_folder(self.path.parent)

    def set_aside(self) -> None:
        """Rename the log, durably, so that the next record begins a new one. Raises OSError."""
        disk_writes.rename(self.path, full_path(self.path))
        self._reset()
        disk_writes.fsync_folder(self.path.parent)


def new_log_id() -> bytes:
    """The first bytes of a new log."""
    return _LOG_MAGIC + os.urandom(LOG_ID_BYTES - len(_LOG_MAGIC))


def full_path(path: Path) -> Path:
    """The path to which the log at `path` is set aside."""
    return path.with_name(path.name + FULL)


def new_path(path: Path) -> Path:
    """Where the log that is to be at `path` is written."""
    return path.with_name(path.name + NEW)


def full_records(path: Path) -> Iterator[Record]:
    """The records that were set aside from the log at `path`, one by one. Raises BrokenLog and OSError."""
    return ScatterLog(full_path(path)).follow(repair=False)


def aside_records(path: Path) -> Iterator[Record]:
    """Those of `full_records` that the log does not have.

    What is in both was the tail when the log was set aside, and counts as the log's: see `ScatterLog.replace`.
    """
    with closing(ScatterLog(path).follow(repair=False)) as records:
        first = next(records, None)
    for record in full_records(path):
        if first is None or record.entry.sequence < first.entry.sequence:
            yield record


def all_records(path: Path) -> Iterator[Record]:
    """The `aside_records` and those of the log at `path`, one by one. Raises BrokenLog and OSError."""
    yield from aside_records(path)
    yield from ScatterLog(path).follow(repair=False)


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

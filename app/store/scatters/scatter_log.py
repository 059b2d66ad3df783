"""The redo log of a tensor that scatters change. A scatter is acknowledged when its record is durable in the log.

A record contains the new values of the changed rows, not the amounts that were added. A record can therefore be
replayed safely any number of times, whether the content already has all, some or none of its changes. A record also
contains the request's Idempotency-Key and the response.

Records written with one fsync share a frame and its checksum: after a power loss, either all of them are present or
none are. Only the last frame of a log can be torn.

A log that has grown long is set aside as `ID.full`, and the next record starts a new log. The checkpoint can then read
a file that no longer changes while scatters continue. All records in `ID.full` are durable and applied, except for
copies of records that are also in the new log.

Records of a replicated version (see `replicated_contents`) have an epoch. The records that have not been applied yet
are the log's tail. A later primary may order the tail to be dropped; the log then gets a new ID.

A log file starts with a magic and eight random bytes. Together, these 16 bytes are the log's ID. By the ID, a process
can tell whether the log is still the one that it read before. The frames follow; see `log_frames`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.store.catalogue.catalogue_rows import AnsweredKey, RowCounts
from app.store.files import disk_writes
from app.store.files.regular_file import mode_of, open_regular, read_at
from app.store.scatters.log_frames import BrokenLog, Entry, Record, decode, encode, frame_at, frames_in, holds_record

_LOG_MAGIC: Final = b"redolog1"
LOG_ID_BYTES: Final = 16
"""Number of bytes before the first frame of a log."""
FULL: Final = ".full"
"""Suffix of a log that was set aside."""
NEW: Final = ".new"
"""Suffix of a log that is being written to replace another log."""
_LANDMARK_BYTES: Final = 1 << 18
"""Minimum distance in bytes between two landmarks of a log."""
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PlacedEntry:
    """An entry of a log, and the offsets in the file at which its frame begins and ends."""

    entry: Entry
    begin: int
    end: int


class ScatterLog:
    """The log at `path`, as far as this process has read it. Call all methods while holding the tensor's lock.

    `keys` are the Idempotency-Keys in the log, by scope and key. `end` is the number of bytes read so far. `tail` holds
    the entries that have an epoch and that `settle` has not yet moved out; their keys are not in `keys`. `landmarks`
    lists the first sequence and the offset of some of the frames with an epoch, in order. It always includes the first
    frame with an epoch.
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
        """The bytes that distinguish this log from its predecessor, which a checkpoint removed. Empty if there is no
        log.
        """

    def read(self, *, repair: bool = True) -> None:
        """Read new frames. If `repair` is true, cut off a torn last frame. Raises BrokenLog and OSError."""
        deque(self.follow(repair=repair), maxlen=0)

    def follow(self, *, repair: bool = True) -> Generator[Record, None, None]:
        """Yield new records while doing the work of `read`.

        Callers must exhaust the generator. Raises BrokenLog and OSError.
        """
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
                # The writer may have died before the file's name was durable, so a log without records counts as
                # missing.
                self._reset()
            if self.end < size:
                # The last frame may be torn; then it was never acknowledged. A torn frame before a sound one is damage.
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
                self._register_entry(record.entry, begin)
                yield record

    def _register_entry(self, entry: Entry, begin: int) -> None:
        """Register an entry of the frame from `begin` to `self.end`."""
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
        """Move the entries up to `applied`, the sequence of the last applied record, out of the tail."""
        while self.tail and self.tail[0].entry.sequence <= applied:
            entry = self.tail.popleft().entry
            if entry.key is not None:
                self._note_key(entry)

    @property
    def settled_end(self) -> int:
        """The offset at which the tail's first frame begins, or the end of the log if it has no tail."""
        return self.tail[0].begin if self.tail else self.end

    def append(self, records: Sequence[Record]) -> None:
        """Durably append records as one frame. On OSError, the log stays as it was.

        Call `read` first. Raises RuntimeError if another process has appended records that this process has not read.
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
            self._register_entry(record.entry, begin)

    def read_frame(self, placed: PlacedEntry) -> list[Record]:
        """Return the records of the frame that contains an entry. Raises BrokenLog and OSError."""
        return list(decode(self.read_bytes(placed.begin, placed.end)))

    def read_bytes(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end`, both at frame boundaries. Raises BrokenLog and OSError."""
        fd = open_regular(self.path)
        try:
            content = read_at(fd, begin, end - begin)
        finally:
            os.close(fd)
        return b"".join(frames_in(content))

    def cut(self, offset: int) -> None:
        """Durably cut off the tail's frames, starting with the one at `offset`. Raises OSError.

        The log first gets a new ID. It tells other processes that frames they have read may be gone, even if new frames
        have been appended since. If this process dies between these two steps, the other processes read the same frames
        again.
        """
        new_id = new_log_id()
        fd = disk_writes.open_or_create(self.path)
        try:
            disk_writes.write_at(fd, new_id, 0)
            disk_writes.truncate(fd, 0 if offset <= LOG_ID_BYTES else offset)
            disk_writes.fsync(fd)
        except OSError:
            self._reset()  # forces a reread
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
        """Durably replace this log with one that contains these frames. Raises OSError.

        If `aside` is true, the old log is set aside. If the process dies at any point, the log is either the complete
        old one or the complete new one. This method also reads the new log from its start.
        """
        new = new_path(self.path)
        disk_writes.unlink(new)  # a process that died may have left it
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
        """Return the log that was set aside. It has been read to its end, so its landmarks are known.

        Raises BrokenLog and OSError.
        """
        if self._aside is None:
            self._aside = ScatterLog(full_path(self.path))
        self._aside.read(repair=False)
        self._aside.tail.clear()
        return self._aside

    def reread(self) -> None:
        """Discard what has been read, and read the log from its start. Raises BrokenLog and OSError."""
        self._reset()
        self.read()

    def make_durable(self, begin: int = 0) -> None:
        """Make the log durable up to where it has been read, because its writer may have died before the fsync.

        Raises OSError.

        `begin` is the offset to start from. At most the last frame is not durable yet, because a writer makes each
        frame durable before it writes the next one.
        """
        if not self.end:
            return
        fd = disk_writes.open_or_create(self.path)
        try:
            # Write the bytes again: after a failed fsync, they are only in memory, and the next fsync would report
            # success.
            for place in range(begin, self.end, _PIECE_BYTES):
                disk_writes.write_at(fd, read_at(fd, place, min(_PIECE_BYTES, self.end - place)), place)
            disk_writes.fsync(fd)
        finally:
            os.close(fd)
        disk_writes.fsync_folder(self.path.parent)

    def set_aside(self) -> None:
        """Durably rename the log, so that the next record starts a new log. Raises OSError."""
        disk_writes.rename(self.path, full_path(self.path))
        self._reset()
        disk_writes.fsync_folder(self.path.parent)


def new_log_id() -> bytes:
    """Return a new random log ID, which forms the beginning of a log file."""
    return _LOG_MAGIC + os.urandom(LOG_ID_BYTES - len(_LOG_MAGIC))


def full_path(path: Path) -> Path:
    """Return the path to which the log at `path` is set aside."""
    return path.with_name(path.name + FULL)


def new_path(path: Path) -> Path:
    """Return the path at which a replacement for the log at `path` is written."""
    return path.with_name(path.name + NEW)


def full_records(path: Path) -> Iterator[Record]:
    """Yield the records of the log that was set aside from `path`. Raises BrokenLog and OSError."""
    return ScatterLog(full_path(path)).follow(repair=False)


def aside_records(path: Path) -> Iterator[Record]:
    """Yield the records of the set-aside log that are not also in the log at `path`.

    Records that are in both logs were the tail when the old log was set aside, and belong to the new log; see
    `ScatterLog.replace`. Raises BrokenLog and OSError.
    """
    with closing(ScatterLog(path).follow(repair=False)) as records:
        first = next(records, None)
    for record in full_records(path):
        if first is None or record.entry.sequence < first.entry.sequence:
            yield record


def all_records(path: Path) -> Iterator[Record]:
    """Yield the records of `aside_records`, and then those of the log at `path`. Raises BrokenLog and OSError."""
    yield from aside_records(path)
    yield from ScatterLog(path).follow(repair=False)


def remove_full(path: Path) -> None:
    """Durably remove the log that was set aside from `path`, if there is one. Raises OSError."""
    if mode_of(full_path(path)) is not None:
        disk_writes.unlink(full_path(path))
        disk_writes.fsync_folder(path.parent)


def _undo_append(fd: int, end: int) -> None:
    """Durably cut off everything that was written after `end`. Raises OSError.

    If the file cannot be truncated, the bytes are overwritten with zeros. Zeros are not a valid record, and the next
    reader cuts them off.
    """
    try:
        disk_writes.truncate(fd, end)
    except OSError:
        disk_writes.write_at(fd, bytes(os.fstat(fd).st_size - end), end)
        raise
    finally:
        disk_writes.fsync(fd)

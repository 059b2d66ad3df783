"""The tail of a replicated version's log: records that are durable but have not been applied yet.

Call all functions while holding the tensor's lock, on a log that has been read to its end and settled
(`ScatterLog.settle`). They may raise BrokenLog and OSError.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator

from app.store.files import disk_writes
from app.store.files.regular_file import mode_of, open_regular
from app.store.scatters.log_frames import BrokenLog, Record, decode, encode, frame_at
from app.store.scatters.scatter_log import LOG_ID_BYTES, ScatterLog, full_path, remove_full


def tail_records(log: ScatterLog, up_to: int) -> list[Record]:
    """Return the records of the tail up to and including the sequence `up_to`."""
    if not log.tail or log.tail[0].entry.sequence > up_to:
        return []
    first = log.tail[0].entry.sequence
    records: list[Record] = []
    end = 0
    for placed in log.tail:
        if placed.entry.sequence > up_to:
            break
        if placed.begin >= end:
            records += [one for one in log.read_frame(placed) if first <= one.entry.sequence <= up_to]
            end = placed.end
    return records


def drop_after(log: ScatterLog, sequence: int) -> None:
    """Durably remove the tail's records after `sequence`."""
    dropped = next((placed for placed in log.tail if placed.entry.sequence > sequence), None)
    if dropped is None:
        return
    _trim_full(log)
    kept = [one for one in log.read_frame(dropped) if one.entry.sequence <= sequence]
    if kept:
        # A frame cannot be cut in the middle. To drop only some of its records, rewrite the frame and everything before
        # it.
        before = log.read_bytes(LOG_ID_BYTES, dropped.begin)
        log.replace(before, encode(kept))
    else:
        log.cut(dropped.begin)


def _trim_full(log: ScatterLog) -> None:
    """Remove records from the set-aside log if they are also in the log, because only the log's copies count."""
    path = full_path(log.path)
    if mode_of(path) is None or not log.landmarks:
        return
    if path.samefile(log.path):  # a process died in `replace`, so one file has both names
        remove_full(log.path)
        return
    first = log.landmarks[0][0]  # both logs have the same frames, so a frame begins at this record in each log
    full = ScatterLog(path)
    full.read(repair=False)
    for placed in full.tail:
        if placed.entry.sequence >= first:
            fd = disk_writes.open_or_create(path)
            try:
                disk_writes.truncate(fd, placed.begin)
                disk_writes.fsync(fd)
            finally:
                os.close(fd)
            return


def leave_tail(log: ScatterLog, *, aside: bool) -> None:
    """Replace the log with a new one that contains just the tail's frames.

    If `aside` is true, the old log is set aside. There must not be a set-aside log already.
    """
    log.replace(log.read_bytes(log.settled_end, log.end), aside=aside)


def frames_after(log: ScatterLog, sequence: int, most: int) -> bytes | None:
    """Return frames with the records after `sequence`, or None if some of these records are no longer in a log.

    Returns whole frames, stopping when they total `most` bytes or more. Returns no bytes if there are no later records.
    """
    if log.last_sequence is None or log.last_sequence <= sequence:
        return b""
    if log.landmarks and log.landmarks[0][0] <= sequence + 1:
        return b"".join(_frames(log, sequence, None, most))
    aside = log.aside()
    if not aside.landmarks or aside.landmarks[0][0] > sequence + 1:
        return None
    first = log.landmarks[0][0] if log.landmarks else None
    found = b"".join(_frames(aside, sequence, first, most))
    if len(found) >= most:
        return found
    return found + b"".join(_frames(log, sequence, None, most - len(found)))


def _frames(log: ScatterLog, after: int, before: int | None, most: int) -> Iterator[bytes]:
    """Yield frames with the records after the sequence `after` and before the sequence `before`.

    The log must hold the first of these records.
    """
    place = log.landmarks[max(0, bisect_right(log.landmarks, (after + 1, log.end)) - 1)][1] if log.landmarks else 0
    if not place:
        return
    fd = open_regular(log.path)
    try:
        size = 0
        while place < log.end and size < most:
            frame = frame_at(fd, place, log.end)
            if not frame:
                raise BrokenLog
            place += len(frame)
            records = list(decode(frame))
            wanted = [
                one for one in records if after < one.entry.sequence and (before is None or one.entry.sequence < before)
            ]
            if not wanted:
                if records and before is not None and records[0].entry.sequence >= before:
                    return
                continue
            piece = frame if len(wanted) == len(records) else encode(wanted)
            size += len(piece)
            yield piece
    finally:
        os.close(fd)

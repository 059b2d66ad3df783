"""The tail of a log: the records of a replicated content that are durable and not applied yet, and what is after them.

All functions are for the tensor's lock, and for a log that has been read to its end and told what is applied
(`ScatterLog.settle`). They raise BrokenLog and OSError.
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
    """The records of the tail up to this sequence."""
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
    """Remove the records of the tail after this sequence, durably."""
    dropped = next((placed for placed in log.tail if placed.entry.sequence > sequence), None)
    if dropped is None:
        return
    _trim_full(log)
    kept = [one for one in log.read_frame(dropped) if one.entry.sequence <= sequence]
    if kept:
        # Frames are whole or not there at all, so one that goes in part is written anew, with all before it.
        before = log.read_bytes(LOG_ID_BYTES, dropped.begin)
        log.replace(before, encode(kept))
    else:
        log.cut(dropped.begin)


def _trim_full(log: ScatterLog) -> None:
    """Cut off the copies of the log's records from the log that was set aside: they count where the log has them."""
    path = full_path(log.path)
    if mode_of(path) is None or not log.landmarks:
        return
    if path.samefile(log.path):  # a process died in `replace`: it is one file with two names
        remove_full(log.path)
        return
    first = log.landmarks[0][0]  # both have the same frames, so that one begins there
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
    """Begin a new log with the frames of the tail; `aside` sets the old one aside, for which its place must be free."""
    log.replace(log.read_bytes(log.settled_end, log.end), aside=aside)


def frames_after(log: ScatterLog, sequence: int, most: int) -> bytes | None:
    """Frames with the records after `sequence`, of `most` bytes or one frame more; None if some are not there.

    Nothing if there are no records after it.
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
    """Frames with the records after one sequence, and before another, from a log in which the first is."""
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

"""Open tensors for scatters: read each redo log to its end, and replay it if a process has died.

Call all functions here while holding the tensor's lock.

For a replicated version, `catch_up` determines which log records have been applied, and completes what a crash
interrupted. It leaves the log's tail alone, because only the primary decides whether the tail's records are committed.

After a power loss, the header's words may be older than the content. The content may include rows from any record in
the log, even from records that had been committed and applied before the power loss and are now in the tail. This is
safe:

- No record leaves the log before the content and the header are durable, so all records up to the last applied one can
  be applied again.
- EPOCH is durable before anything is logged under it.
- LOGGED and DURABLE_EPOCH are valid only within one session.
- If the log has a tail, the content is unsettled: nobody may read it until every record whose rows it may include has
  been applied.

Even if a replica knew before the power loss that a record was committed, it must therefore query its primary again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from app.store.catalogue.catalogue_rows import AnsweredKey, Row
from app.store.files import disk_writes
from app.store.files.regular_file import NotRegular
from app.store.files.tensor_file import DAMAGED, BadFile, HeaderWord, page_version
from app.store.scatters.log_frames import BrokenLog, Record
from app.store.scatters.log_tail import tail_records
from app.store.scatters.scatter_log import ScatterLog, all_records, aside_records, full_path, new_path
from app.store.scatters.writable_tensor import WritableTensor
from app.store.store_errors import damaged, unreadable
from app.store.tensor_metadata import read_first_page

_MAX_KNOWN_LOGS: Final = 1000
"""Maximum number of logs whose read positions are cached. A log that was evicted is read from its start again."""


class ReplayedLogs:
    """The redo logs of a store. A tensor's log is replayed into its files when the tensor is opened."""

    def __init__(self, tensors: Path, logs: Path, session: Callable[[], int]) -> None:
        """Start with no known logs.

        `session` returns the number of the store's current session; see `directory_lock`.
        """
        self.session = session
        self.tensor_folder = tensors
        self.log_folder = logs
        self._known_logs: OrderedDict[str, ScatterLog] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def open(self, row: Row) -> Iterator[WritableTensor]:
        """Open a tensor's file for writing, with every logged change applied.

        If the version is replicated, only committed changes are applied. Raises tensor_damaged and OSError.
        """
        with self.open_without_replay(row) as writable:
            if writable.words[HeaderWord.EPOCH]:
                catch_up(writable, self.session())
            else:
                _apply_rest(writable)
            if writable.words[HeaderWord.VERSION] & DAMAGED:
                raise damaged(row.name, "its checksums or its log do not match")
            yield writable

    @contextmanager
    def open_without_replay(self, row: Row) -> Iterator[WritableTensor]:
        """Open a tensor's file for writing as it is on disk, without replaying its log.

        Raises tensor_damaged and OSError.
        """
        # Take a log out of the cache while it is in use. If it were evicted, two objects for the same log could
        # overwrite each other's records.
        log = self._take_log(row.content)
        try:
            with closing(_open_writable(self.tensor_folder, row, log)) as writable:
                yield writable
        finally:
            with self._lock:
                self._known_logs[row.content] = log
                while len(self._known_logs) > _MAX_KNOWN_LOGS:
                    self._known_logs.popitem(last=False)

    def _take_log(self, content: str) -> ScatterLog:
        with self._lock:
            log = self._known_logs.pop(content, None)
        return ScatterLog(self.log_folder / content) if log is None else log

    def keys_of(self, row: Row) -> list[AnsweredKey]:
        """Return the Idempotency-Keys in the log of a version that is about to be removed. Raises OSError."""
        log = self._take_log(row.content)
        with suppress(BrokenLog, NotRegular):
            log.read()
        if log.tail:
            with suppress(BadFile):
                log.settle((page_version(read_first_page(self.tensor_folder / row.file)[1]) & ~DAMAGED) >> 1)
        return list(log.keys.values())

    def remove(self, content: str) -> None:
        """Delete the log of a version that has been removed."""
        with self._lock:
            self._known_logs.pop(content, None)
        # Ignore errors: `remove_leftovers` removes the files later, as it does after a crash.
        with suppress(OSError):
            disk_writes.unlink(self.log_folder / content)
            disk_writes.unlink(full_path(self.log_folder / content))
            disk_writes.unlink(new_path(self.log_folder / content))


def _open_writable(tensor_folder: Path, row: Row, log: ScatterLog) -> WritableTensor:
    """Open a tensor's file for writing as it is on disk, without replaying the log. Raises tensor_damaged, OSError."""
    try:
        writable = WritableTensor(tensor_folder, row, log)
    except BadFile as problem:
        raise damaged(row.name, str(problem)) from None
    except FileNotFoundError:
        raise damaged(row.name, "its file is missing") from None
    except NotRegular as problem:
        raise unreadable(row.name, problem) from None
    if (writable.description.id, writable.description.name) != (row.content, row.name):
        writable.close()
        raise damaged(row.name, "its file describes another tensor")
    return writable


def _apply_rest(writable: WritableTensor) -> None:
    """Apply the records that a process logged but did not apply before it died. Raises tensor_damaged and OSError."""
    log, applied = writable.log, writable.applied
    try:
        log.read()
        if log.last_sequence is not None and log.last_sequence > applied:
            # The process that logged these records may have died before its fsync. Make them durable before applying
            # them, because readers see them afterwards.
            log.make_durable()

            def left() -> Iterator[Record]:
                records = ScatterLog(log.path).follow(repair=False)
                return (record for record in records if record.entry.sequence > applied)

            if writable.version & 1:
                writable.repair(left)
            else:
                writable.apply(left())
    except BrokenLog:
        writable.mark_damaged()
        return
    except NotRegular as problem:
        raise damaged(writable.description.name, f"its log cannot be read: {problem.strerror}") from None
    if writable.version & 1:
        writable.mark_damaged()


logger = logging.getLogger("gathernd")


def catch_up(writable: WritableTensor, session: int) -> None:
    """Complete the work of dead processes, read the log to its end, and settle the log's applied records.

    Call this while holding the tensor's lock. Marks the content as damaged if required records are missing from its
    log. Raises tensor_damaged and OSError.
    """
    log, words = writable.log, writable.words
    try:
        log.read()
        if words[HeaderWord.SESSION] != session:
            writable.set_epoch(words[HeaderWord.EPOCH])
            _replay(writable)
            writable.set_words({HeaderWord.LOGGED: log.last_sequence or 0, HeaderWord.SESSION: session})
        elif log.last_sequence is not None and log.last_sequence > words[HeaderWord.LOGGED]:
            log.make_durable(log.tail[-1].begin)  # the process that wrote the record died before its fsync
            writable.set_words({HeaderWord.LOGGED: log.last_sequence})
        log.settle(writable.applied)
        if words[HeaderWord.DURABLE_EPOCH] != words[HeaderWord.EPOCH]:
            writable.set_epoch(words[HeaderWord.EPOCH])
        if writable.version & 1:
            # Records are applied one at a time, so the interrupted record is the first in the tail, and it is
            # committed.
            following = tail_records(log, writable.applied + 1)
            if not following:
                raise BrokenLog
            writable.repair(lambda: following)
            log.settle(writable.applied)
    except BrokenLog:
        logger.error("the log of %s is damaged: acknowledged changes are lost", writable.description.name)
        writable.mark_damaged()
    except NotRegular as problem:
        raise damaged(writable.description.name, f"its log cannot be read: {problem.strerror}") from None


def _replay(writable: WritableTensor) -> None:
    """In a new session, apply all applied records again. Raises BrokenLog and OSError.

    An interrupted record counts as applied from then on, even if startup is interrupted here.
    """
    log, words = writable.log, writable.words
    sequences = [record.entry.sequence for record in all_records(log.path)]
    applied = writable.applied
    # SESSION 0 means that the version is odd because of a replay
    if writable.version & 1 and words[HeaderWord.SESSION] != 0:
        applied += 1
    for record in aside_records(log.path):
        applied = max(applied, record.entry.sequence)  # only applied records are set aside
    if applied not in sequences and (writable.version & 1 or (sequences and sequences[0] <= applied)):
        raise BrokenLog
    log.make_durable(log.tail[-1].begin if log.tail else 0)
    unsettled = max([*sequences[-1:], words[HeaderWord.UNSETTLED]])
    writable.set_words({HeaderWord.UNSETTLED: unsettled})
    writable.set_applied(applied)
    writable.set_words({HeaderWord.SESSION: 0})
    if next(writable.applied_records(), None) is not None:
        writable.repair(writable.applied_records)

"""Open tensors for scatters: read the redo log to its end, and replay it if a process died.

Call everything here with the tensor's lock held.
"""

from __future__ import annotations

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
from app.store.scatters.scatter_log import ScatterLog, full_path, new_path
from app.store.scatters.session_replay import make_sure
from app.store.scatters.writable_tensor import WritableTensor
from app.store.store_errors import damaged, unreadable
from app.store.tensor_metadata import read_first_page

_MAX_KNOWN_LOGS: Final = 1000
"""Maximum number of logs whose read position is cached; a log evicted from the cache is read from its start again."""


class ReplayedLogs:
    """The redo logs of a store, replayed into a tensor's files when it is opened."""

    def __init__(self, tensors: Path, logs: Path, session: Callable[[], int]) -> None:
        """`session` returns the number of the store's current session, see `app.store.processes.session`."""
        self.session = session
        self.tensor_folder = tensors
        self.log_folder = logs
        self._known_logs: OrderedDict[str, ScatterLog] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def open(self, row: Row) -> Iterator[WritableTensor]:
        """Open a tensor's file for writing with every logged change applied.

        If the content is replicated, only the committed changes are applied. Raises tensor_damaged and OSError.
        """
        with self.open_without_replay(row) as writable:
            if writable.words[HeaderWord.EPOCH]:
                make_sure(writable, self.session())
            else:
                _apply_rest(writable)
            if writable.words[HeaderWord.VERSION] & DAMAGED:
                raise damaged(row.name, "its checksums or its log do not match")
            yield writable

    @contextmanager
    def open_without_replay(self, row: Row) -> Iterator[WritableTensor]:
        """Open a tensor's file for writing as it is on disk, without a replay. Raises tensor_damaged and OSError."""
        # Take a log in use out of the cache, so that it cannot be evicted: two objects for one log would overwrite each
        # other's records.
        log = self._take(row.content)
        try:
            with closing(_open_writable(self.tensor_folder, row, log)) as writable:
                yield writable
        finally:
            with self._lock:
                self._known_logs[row.content] = log
                while len(self._known_logs) > _MAX_KNOWN_LOGS:
                    self._known_logs.popitem(last=False)

    def _take(self, content: str) -> ScatterLog:
        with self._lock:
            log = self._known_logs.pop(content, None)
        return ScatterLog(self.log_folder / content) if log is None else log

    def keys_of(self, row: Row) -> list[AnsweredKey]:
        """Return the Idempotency-Keys in the log of content that is about to be removed. Raises OSError."""
        log = self._take(row.content)
        with suppress(BrokenLog, NotRegular):
            log.read()
        if log.tail:
            with suppress(BadFile):
                log.settle((page_version(read_first_page(self.tensor_folder / row.file)[1]) & ~DAMAGED) >> 1)
        return list(log.keys.values())

    def remove(self, content: str) -> None:
        """Delete the log of content that has been removed."""
        with self._lock:
            self._known_logs.pop(content, None)
        # Ignore errors: `remove_leftovers` removes the files later, as after a crash.
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
            # The process that logged these records may have died before its fsync. Make them durable before they are
            # applied, because readers see them afterwards.
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

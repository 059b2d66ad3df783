"""Import records: each import's target, progress and outcome, readable by every process of the group.

A record is a row in the catalogue. It is inserted when the import begins and updated when the import ends. While the
import runs, its process also holds a lock on a file:

    imports/ID.run      the number of bytes done, as uint64, and a byte set to 1 to cancel the import

If the process of an unfinished import has died, the catalogue decides the outcome. The import is done if the version
that it was creating exists; otherwise it has failed. For an import into a cluster, the error says that the outcome is
unknown. Imports are never resumed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from app.errors import GatherError
from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_transaction import Transaction
from app.store.files import disk_writes
from app.store.files.regular_file import NotRegular, open_regular
from app.store.files.remove_leftovers import file_names
from app.store.processes.store_locks import StoreLocks, try_lock
from app.store.store_errors import storage_errors
from app.store.tensor_metadata import Metadata

logger = logging.getLogger("gathernd")
FOLDER: Final = "imports"
REMEMBERED: Final = 1000
"""Maximum number of records of finished imports. Beyond that, the oldest ones are removed."""
State = Literal["running", "done", "failed", "cancelled"]
_SUFFIX: Final = ".run"
_ASKED_TO_END: Final = 8
"""Offset of the byte that cancels the import when it is 1."""


@dataclass(frozen=True, slots=True)
class ImportFailure:
    """Why an import failed, as the members of its error."""

    code: Any
    detail: str
    hint: str | None = None
    facts: dict[str, int | str] = field(default_factory=dict)

    def as_error(self) -> GatherError:
        """Return the error as an exception."""
        pointer = "/url" if self.code == "import_failed" else None
        return GatherError(self.code, self.detail, hint=self.hint, facts=self.facts, pointer=pointer)


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """An import. Times are nanoseconds since 1970.

    `url` has no query. `content` is the ID of the content to create, or "" if a cluster chooses the ID when it
    publishes the content. `done` is the number of item bytes read so far, out of `total`. `metadata` describes the
    version that was created.
    """

    id: str
    name: str
    url: str
    tensor: str | None
    content: str
    total: int
    created: int
    state: State = "running"
    done: int = 0
    ended: int | None = None
    error: ImportFailure | None = None
    metadata: Metadata | None = None


_JSON: Final = TypeAdapter(ImportRecord)


@dataclass
class ImportRecords:
    """The import records of a store. All methods do blocking disk I/O.

    `_change` returns a catalogue transaction as a context manager. `_find_made` takes a tensor name and a content ID,
    and returns the content's metadata or None.
    """

    _folder: Path
    _locks: StoreLocks
    _catalogue: Catalogue
    _change: Callable[[], AbstractContextManager[Transaction]]
    _find_made: Callable[[str, str], Metadata | None]

    def begin(self, name: str, url: str, tensor: str | None, content: str, total: int) -> RunningImport:
        """Durably insert the record of a new import. Raises insufficient_storage."""
        now = time.time_ns()
        record = ImportRecord(f"{now:016x}{secrets.token_hex(8)}", name, url, tensor, content, total, now)
        running = RunningImport(self, record)
        with storage_errors(running.close):
            with self._locks.uploads():
                running.lock()
            with self._change() as transaction:
                transaction.forget_imports(REMEMBERED - 1)
                transaction.put_import(record.id, _JSON.dump_json(record))
        return running

    def write(self, record: ImportRecord) -> None:
        """Durably write the record of an import that has ended, replacing its earlier record. Raises OSError."""
        with self._change() as transaction:
            transaction.put_import(record.id, _JSON.dump_json(record))

    def forget(self, number: str) -> None:
        """Durably remove a record. Raises OSError."""
        with self._change() as transaction:
            transaction.remove_import(number)

    def path(self, number: str) -> Path:
        """Return the path of the file that the process running an import keeps locked."""
        return self._folder / f"{number}{_SUFFIX}"

    def find(self, number: str) -> ImportRecord | None:
        """Return the current record of the import with this ID, or None. Raises insufficient_storage."""
        with storage_errors():
            return self._close_if_dead(self._read(number))

    def page(self, limit: int, after: str | None) -> tuple[list[ImportRecord], str | None]:
        """Return at most `limit` imports in the order in which they began, starting after the ID `after`.

        The second value is the last returned ID if more imports follow, and otherwise None.
        """
        with storage_errors():
            found = [_JSON.validate_json(text) for text in self._catalogue.imports(after or "", limit + 1)]
            page = [one for record in found[:limit] if (one := self._close_if_dead(record)) is not None]
        return page, found[limit - 1].id if len(found) > limit else None

    def cancel(self, number: str) -> bool:
        """Cancel an import, or forget one that has ended. Returns False if there is no such import.

        Raises insufficient_storage.
        """
        record = self.find(number)
        if record is None:
            return False
        with storage_errors():
            if record.state != "running":
                self.forget(number)
                return True
            with suppress(FileNotFoundError):  # the import has just ended
                fd = open_regular(self.path(number), os.O_RDWR)
                try:
                    disk_writes.write_at(fd, b"\1", _ASKED_TO_END)
                finally:
                    os.close(fd)
        return True

    def remove_leftovers(self) -> None:
        """Close the records of imports whose processes have died, and remove other leftovers. Raises OSError."""
        for text in self._catalogue.imports("", -1):
            self._close_if_dead(_JSON.validate_json(text))
        for name in file_names(self._folder):
            with self._locks.uploads(), suppress(IsADirectoryError):
                if self._bytes_done(name.removesuffix(_SUFFIX)) is None:
                    disk_writes.unlink(self._folder / name)

    def _read(self, number: str) -> ImportRecord | None:
        text = self._catalogue.find_import(number)
        return None if text is None else _JSON.validate_json(text)

    def _close_if_dead(self, record: ImportRecord | None) -> ImportRecord | None:
        """Return the current record of an import, first closing it if the import's process has died. Raises OSError."""
        if record is None or record.state != "running":
            return record
        with self._locks.uploads():
            done = self._bytes_done(record.id)
            now = self._read(record.id)  # the import's process may have closed the record before releasing the file
            if now is None or now.state != "running":
                return now
            if done is not None:
                return replace(now, done=min(done, now.total))
            now = self._final_record(now)
            with suppress(OSError):  # the next read of the record tries again
                self.write(now)
                disk_writes.unlink(self.path(now.id))
            return now

    def _bytes_done(self, number: str) -> int | None:
        """Return the number of bytes done if a process is running the import, and otherwise None."""
        try:
            fd = open_regular(self.path(number), os.O_RDWR)
        except (FileNotFoundError, NotRegular):
            return None
        try:
            return None if try_lock(fd) else int.from_bytes(os.pread(fd, 8, 0), "little")
        finally:
            os.close(fd)

    def _final_record(self, record: ImportRecord) -> ImportRecord:
        """Return the final record of an import whose process has died."""
        made = self._find_made(record.name, record.content) if record.content else None
        if made is not None:
            return replace(record, state="done", done=record.total, ended=time.time_ns(), metadata=made)
        error = ImportFailure(
            "import_failed",
            f"{record.url} could not be imported: the process that read it has ended",
            "Send the request again.",
        )
        if not record.content:
            error = ImportFailure(
                "import_failed",
                f"the process that imported {record.url} has ended; it is not known whether its version was published",
                f"Send the request again unless {record.name!r} has a new version.",
            )
        return replace(record, state="failed", ended=time.time_ns(), error=error)


class RunningImport:
    """An import that this process runs. Any thread may call `record_progress` and `should_continue` at any time."""

    def __init__(self, records: ImportRecords, record: ImportRecord) -> None:
        self.record = record
        self._records = records
        self._fd = -1
        self._fd_mutex = Lock()  # after the file is closed, another file may get the same descriptor

    def lock(self) -> None:
        """Create and lock the file that shows that this process is running the import. Raises OSError."""
        self._fd = disk_writes.create(self._records.path(self.record.id))
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # allocate the bytes now, in case the disk is full later
        disk_writes.write_at(self._fd, bytes(_ASKED_TO_END + 1), 0)

    def record_progress(self, done: int) -> bool:
        """Record the number of bytes done, unless the import has ended. Returns whether to continue. Raises OSError."""
        with self._fd_mutex:
            if self._fd >= 0:
                disk_writes.write_at(self._fd, done.to_bytes(8, "little"), 0)
        return self.should_continue()

    def should_continue(self) -> bool:
        """Return whether the import should continue, or False if it was canceled."""
        with self._fd_mutex:
            return self._fd < 0 or os.pread(self._fd, 1, _ASKED_TO_END) != b"\1"

    def end(self, **members: Any) -> ImportRecord:
        """Record the outcome by setting these members of the record.

        If the write fails, the outcome is determined as if the process had died; see the module docstring.
        """
        self.record = replace(self.record, ended=time.time_ns(), **members)
        try:
            self._records.write(self.record)
        except OSError as error:
            logger.warning("the end of import %s could not be written: %s", self.record.id, error.strerror)
        self.close()
        return self.record

    def undo(self) -> None:
        """Remove every trace of the import."""
        with suppress(OSError):
            self._records.forget(self.record.id)
        self.close()

    def close(self) -> None:
        """Remove the file that shows that this process is running the import."""
        with self._fd_mutex:
            if self._fd >= 0:
                with suppress(OSError):
                    disk_writes.unlink(self._records.path(self.record.id))
                os.close(self._fd)
            self._fd = -1

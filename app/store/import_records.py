"""Records of imports: what each is to make, how far it is and how it ended. Every process of the group can read them.

A record is a row of the catalogue, entered when its import begins and changed once more when that has ended. While it
goes on there is a file as well, which its process holds locked:

    imports/ID.run      the bytes done, as uint64, and a byte that is 1 if a request asks for the end of the import

A record without an end whose process has died ends as the catalogue says: the import is done if the content that it was
to make is there, and has failed otherwise; of one into a cluster the error says that this is not known. Nothing is
carried on.
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
"""Most records of ended imports; beyond that the oldest is removed."""
State = Literal["running", "done", "failed", "cancelled"]
_SUFFIX: Final = ".run"
_ASKED_TO_END: Final = 8
"""Offset of the byte that asks the import to end."""


@dataclass(frozen=True, slots=True)
class ImportFailure:
    """How an import failed: the members of its error."""

    code: Any
    detail: str
    hint: str | None = None
    facts: dict[str, int | str] = field(default_factory=dict)

    def as_error(self) -> GatherError:
        """The error itself."""
        pointer = "/url" if self.code == "import_failed" else None
        return GatherError(self.code, self.detail, hint=self.hint, facts=self.facts, pointer=pointer)


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """An import. `url` has no query; `content` is the id of the content that it makes, "" where a cluster publishes it
    under an id of its own; times are ns since 1970.

    `done` counts bytes of items read, of `total`. `metadata` is what was made.
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
    """The records of a store. All methods block on the disk.

    `change` begins a transaction of the catalogue that ends with its context; `find_made` gives the metadata of a
    content of a tensor, by name and id, None if there is none.
    """

    _folder: Path
    _locks: StoreLocks
    _catalogue: Catalogue
    _change: Callable[[], AbstractContextManager[Transaction]]
    _find_made: Callable[[str, str], Metadata | None]

    def begin(self, name: str, url: str, tensor: str | None, content: str, total: int) -> RunningImport:
        """Enter an import, durably. Raises insufficient_storage."""
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
        """Write the record of an import that has ended, durably, in place of the older one. Raises OSError."""
        with self._change() as transaction:
            transaction.put_import(record.id, _JSON.dump_json(record))

    def forget(self, number: str) -> None:
        """Remove a record, durably. Raises OSError."""
        with self._change() as transaction:
            transaction.remove_import(number)

    def path(self, number: str) -> Path:
        """The file that the process of an import holds locked."""
        return self._folder / f"{number}{_SUFFIX}"

    def find(self, number: str) -> ImportRecord | None:
        """The import of this id as it is now, None if there is none any more. Raises insufficient_storage."""
        with storage_errors():
            return self._settled(self._read(number))

    def page(self, limit: int, after: str | None) -> tuple[list[ImportRecord], str | None]:
        """At most `limit` imports in the order in which they began, those after the id `after`; the last id if more
        follow.
        """
        with storage_errors():
            found = [_JSON.validate_json(text) for text in self._catalogue.imports(after or "", limit + 1)]
            page = [one for record in found[:limit] if (one := self._settled(record)) is not None]
        return page, found[limit - 1].id if len(found) > limit else None

    def cancel(self, number: str) -> bool:
        """Have an import end, or forget one that has ended; False if there is none. Raises insufficient_storage."""
        record = self.find(number)
        if record is None:
            return False
        with storage_errors():
            if record.state != "running":
                self.forget(number)
                return True
            with suppress(FileNotFoundError):  # it has ended meanwhile
                fd = open_regular(self.path(number), os.O_RDWR)
                try:
                    disk_writes.write_at(fd, b"\1", _ASKED_TO_END)
                finally:
                    os.close(fd)
        return True

    def remove_leftovers(self) -> None:
        """End the records of processes that have died, and remove what else they left. Raises OSError."""
        for text in self._catalogue.imports("", -1):
            self._settled(_JSON.validate_json(text))
        for name in file_names(self._folder):
            with self._locks.uploads(), suppress(IsADirectoryError):
                if self._progress(name.removesuffix(_SUFFIX)) is None:
                    disk_writes.unlink(self._folder / name)

    def _read(self, number: str) -> ImportRecord | None:
        text = self._catalogue.find_import(number)
        return None if text is None else _JSON.validate_json(text)

    def _settled(self, record: ImportRecord | None) -> ImportRecord | None:
        """The record of an import as it is now; it is ended first if its process has died. Raises OSError."""
        if record is None or record.state != "running":
            return record
        with self._locks.uploads():
            done = self._progress(record.id)
            now = self._read(record.id)  # its process may have ended it, before it gave up its file
            if now is None or now.state != "running":
                return now
            if done is not None:
                return replace(now, done=min(done, now.total))
            now = self._ended(now)
            with suppress(OSError):  # it is ended anew when it is asked for again
                self.write(now)
                disk_writes.unlink(self.path(now.id))
            return now

    def _progress(self, number: str) -> int | None:
        """The bytes that are done while a process carries the import out, None if none does."""
        try:
            fd = open_regular(self.path(number), os.O_RDWR)
        except (FileNotFoundError, NotRegular):
            return None
        try:
            return None if try_lock(fd) else int.from_bytes(os.pread(fd, 8, 0), "little")
        finally:
            os.close(fd)

    def _ended(self, record: ImportRecord) -> ImportRecord:
        """The record of an import whose process has died."""
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
                f"the process that imported {record.url} has ended; whether its version was published is not known",
                f"Send the request again unless {record.name!r} has a new version.",
            )
        return replace(record, state="failed", ended=time.time_ns(), error=error)


class RunningImport:
    """An import that this process carries out. Any thread may call `tell` and `goes_on`, also once it has ended."""

    def __init__(self, records: ImportRecords, record: ImportRecord) -> None:
        self.record = record
        self._records = records
        self._fd = -1
        self._fd_mutex = Lock()  # once it is closed, another file has its number

    def lock(self) -> None:
        """Make the file that says that this process carries it out. Raises OSError."""
        self._fd = disk_writes.create(self._records.path(self.record.id))
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        disk_writes.write_at(self._fd, bytes(_ASKED_TO_END + 1), 0)  # in place, should the disk be full later

    def tell(self, done: int) -> bool:
        """Note how many bytes are done, unless it has ended; whether it is to go on. Raises OSError."""
        with self._fd_mutex:
            if self._fd >= 0:
                disk_writes.write_at(self._fd, done.to_bytes(8, "little"), 0)
        return self.goes_on()

    def goes_on(self) -> bool:
        """Whether no request asks for its end."""
        with self._fd_mutex:
            return self._fd < 0 or os.pread(self._fd, 1, _ASKED_TO_END) != b"\1"

    def end(self, **members: Any) -> ImportRecord:
        """Enter how it ended, with these members of its record.

        Where the disk refuses that, the record ends as that of a process that died: see the module.
        """
        self.record = replace(self.record, ended=time.time_ns(), **members)
        try:
            self._records.write(self.record)
        except OSError as error:
            logger.warning("the end of import %s could not be written: %s", self.record.id, error.strerror)
        self.close()
        return self.record

    def withdraw(self) -> None:
        """Leave no trace of it."""
        with suppress(OSError):
            self._records.forget(self.record.id)
        self.close()

    def close(self) -> None:
        """Remove the file that says that this process carries it out."""
        with self._fd_mutex:
            if self._fd >= 0:
                with suppress(OSError):
                    disk_writes.unlink(self._records.path(self.record.id))
                os.close(self._fd)
            self._fd = -1

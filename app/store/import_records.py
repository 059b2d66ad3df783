"""Records of imports: what each is to make, how far it is and how it ended. Every process of the group can read them.

A record is a file of JSON, written when its import begins and once more when that has ended, each time durably and
whole. Beside it, while it goes on, stands a file that its process holds locked, with the bytes that are done. A record
without an end whose process has died ends as the catalogue says: the import is done if the content that it was to make
is there, and has failed otherwise; of one into a cluster the error says that this is not known. Nothing is carried on.

    imports/ID.json     the record
    imports/ID.run      locked by the process that carries it out; the bytes done, as uint64
    imports/ID.cancel   there is a request to end it
    imports/ID.json.new a record that is being written, or room for its end where the disk is full by then
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, get_args

import orjson

from app.errors import GatherError
from app.store.files import disk_writes
from app.store.files.regular_file import NotRegular, open_regular, read_regular
from app.store.files.remove_leftovers import file_names
from app.store.files.whole_file import keep_room, write_into_room, write_whole_file
from app.store.processes.store_locks import StoreLocks
from app.store.store_errors import storage_errors
from app.store.tensor_metadata import Metadata

logger = logging.getLogger("gathernd")
FOLDER: Final = "imports"
REMEMBERED: Final = 1000
"""Most records of imports that have ended; one more, and the oldest goes."""
State = Literal["running", "done", "failed", "cancelled"]
_ROOM_FOR_END: Final = 1 << 14
"""Bytes of a record with its end; one of the longest URL and a long error has half as many."""
_ID: Final = re.compile(r"[0-9a-f]{32}")
NAME: Final = re.compile(r"[0-9a-f]{32}\.(json|json\.new|run|cancel)")


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


def read_record(path: Path) -> ImportRecord:
    """The record in a file. Raises ValueError where it is none of this name, and OSError."""
    try:
        members = orjson.loads(read_regular(path))
        if members["error"] is not None:
            members["error"] = ImportFailure(**members["error"])
        if members["metadata"] is not None:
            made = members["metadata"]
            made |= {"shape": tuple(made["shape"]), "versions": tuple(made["versions"])}
            members["metadata"] = Metadata(**made)
        record = ImportRecord(**members)
    except (TypeError, KeyError) as problem:
        raise ValueError("its members are not those of a record") from problem
    texts = record.name, record.url, record.content
    numbers = record.total, record.created, record.done, *(() if record.ended is None else (record.ended,))
    if record.id != path.stem or record.state not in get_args(State):
        raise ValueError("it is of another import, or of no state")
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise ValueError("a member has another type")
    return record


def _json(record: ImportRecord) -> bytes:
    return orjson.dumps(asdict(record))


class ImportRecords:
    """The records of a store. All methods block on the disk.

    `find_made` gives the metadata of a content of a tensor, by name and id, None where there is none.
    """

    def __init__(self, folder: Path, locks: StoreLocks, find_made: Callable[[str, str], Metadata | None]) -> None:
        self._folder = folder
        self._locks = locks
        self._find_made = find_made

    def begin(self, name: str, url: str, tensor: str | None, content: str, total: int) -> RunningImport:
        """Enter an import, durably. Raises insufficient_storage."""
        now = time.time_ns()
        record = ImportRecord(f"{now:016x}{secrets.token_hex(8)}", name, url, tensor, content, total, now)
        running = RunningImport(self, record)
        with storage_errors(running.withdraw):
            with self._locks.uploads():
                running.lock()
                self._remove_oldest()
            path = self.path(record.id, "json")
            write_whole_file(path, _json(record))
            keep_room(path, _ROOM_FOR_END)
        return running

    def write_end(self, record: ImportRecord) -> None:
        """Write the record of an import that has ended, durably, in place of the older one. Raises OSError."""
        write_into_room(self.path(record.id, "json"), _json(record))

    def path(self, number: str, kind: str) -> Path:
        """The file of this kind of an import."""
        return self._folder / f"{number}.{kind}"

    def find(self, number: str) -> ImportRecord | None:
        """The import of this id as it is now, None where there is none any more. Raises insufficient_storage."""
        if not _ID.fullmatch(number):
            return None
        record = self._read(number)
        if record is None or record.state != "running":
            return record
        with storage_errors():
            return self._settled(number)

    def page(self, limit: int, after: str | None) -> tuple[list[ImportRecord], str | None]:
        """At most `limit` imports in the order in which they began, those after the id `after`; the last id if more
        follow.
        """
        numbers = [number for number in self._numbers() if after is None or number > after]
        found = [record for number in numbers[:limit] if (record := self.find(number)) is not None]
        return found, numbers[limit - 1] if len(numbers) > limit else None

    def cancel(self, number: str) -> bool:
        """Have an import end, or forget one that has ended; False where there is none. Raises insufficient_storage."""
        record = self.find(number)
        if record is None:
            return False
        with storage_errors(), self._locks.uploads():
            if record.state == "running" and self.path(number, "run").exists():
                os.close(disk_writes.open_or_create(self.path(number, "cancel")))
            else:
                self._forget(number)
        return True

    def remove_leftovers(self) -> None:
        """End the records of processes that have died, and remove what else they left. Raises OSError."""
        for number in sorted({name.partition(".")[0] for name in file_names(self._folder)}):
            record = self._read(number)
            left = [kind for kind in ("run", "cancel", "json.new") if os.path.lexists(self.path(number, kind))]
            if left or record is None or record.state == "running":
                self._settled(number)

    def _numbers(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def _read(self, number: str) -> ImportRecord | None:
        try:
            return read_record(self.path(number, "json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            logger.warning("the record of import %s could not be read: %s", number, type(problem).__name__)
            return None

    def _settled(self, number: str) -> ImportRecord | None:
        """The record of an import; it is ended first if its process has died. Raises OSError."""
        with self._locks.uploads(), self._unless_locked(number) as done:
            record = self._read(number)
            if done is None:  # its process has died, or it has ended
                if record is not None and record.state == "running":
                    record = self._ended(record)
                    try:
                        self.write_end(record)
                    except OSError:  # it is ended anew when it is asked for again
                        return record
                for kind in ("json.new", "cancel", "run"):
                    with suppress(IsADirectoryError):
                        disk_writes.unlink(self.path(number, kind))
            elif record is not None and record.state == "running":
                record = replace(record, done=min(done, record.total))
            return record

    @contextmanager
    def _unless_locked(self, number: str) -> Iterator[int | None]:
        """The bytes that are done while a process carries the import out, None where none does; none begins to."""
        try:
            fd = open_regular(self.path(number, "run"), os.O_RDWR)
        except (FileNotFoundError, NotRegular):
            yield None
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield int.from_bytes(os.pread(fd, 8, 0), "little")
            else:
                yield None
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

    def _remove_oldest(self) -> None:
        numbers = self._numbers()
        for number in numbers[: max(0, len(numbers) + 1 - REMEMBERED)]:
            if not self.path(number, "run").exists():
                self._forget(number)

    def _forget(self, number: str) -> None:
        for kind in ("json.new", "cancel", "json"):
            disk_writes.unlink(self.path(number, kind))
        disk_writes.fsync_folder(self._folder)


class RunningImport:
    """An import that this process carries out. Any thread may call `tell` and `goes_on`, also once it has ended."""

    def __init__(self, records: ImportRecords, record: ImportRecord) -> None:
        self.record = record
        self._records = records
        self._fd = -1
        self._fd_mutex = Lock()

    def lock(self) -> None:
        """Make the file that says that this process carries it out. Raises OSError."""
        self._fd = disk_writes.create(self._records.path(self.record.id, "run"))
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def tell(self, done: int) -> bool:
        """Note how many bytes are done, unless it has ended; whether it is to go on. Raises OSError."""
        with self._fd_mutex:  # once it is closed, another file has its number
            if self._fd >= 0:
                disk_writes.write_at(self._fd, done.to_bytes(8, "little"), 0)
        return self.goes_on()

    def goes_on(self) -> bool:
        """Whether no request asks for its end."""
        return not self._records.path(self.record.id, "cancel").exists()

    def end(self, **members: Any) -> ImportRecord:
        """Enter how it ended, with these members of its record.

        Where the disk refuses that, the record ends as that of a process that died: see the module.
        """
        self.record = replace(self.record, ended=time.time_ns(), **members)
        try:
            self._records.write_end(self.record)
        except OSError as error:
            logger.warning("the end of import %s could not be written: %s", self.record.id, error.strerror)
        else:
            self._remove_files("json.new", "run", "cancel")  # a request that comes now asks for its end no more
        self._close()
        return self.record

    def withdraw(self) -> None:
        """Leave no trace of it."""
        self._remove_files("json.new", "json", "run")
        self._close()

    def _close(self) -> None:
        with self._fd_mutex:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _remove_files(self, *kinds: str) -> None:
        for kind in kinds:
            with suppress(OSError):
                disk_writes.unlink(self._records.path(self.record.id, kind))

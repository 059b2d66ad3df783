"""A backup of a store while a service changes it, or of a stopped one, into a folder that may hold an older backup.

It is of the catalogue at one moment: the versions and aliases that there were then, and the last numbers. Each version
is one content, with all scatters up to a moment of its own, between the beginning and the end of the backup; what was
acknowledged before the beginning is there.

A content is copied without its tensor's lock, from a clone or a snapshot (`download_snapshots`) that is made within it,
so that scatters go on. Uploads and removals meanwhile may take away what the catalogue had at the moment: so first all
that there is is copied, and then, with the files opened within the catalogue's lock, the little that has come since.
Contents that are in the folder already, at the same sequence, stay as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_rows import CatalogueContents, Row
from app.store.files import disk_writes
from app.store.files.content_copy import Read, copy_content
from app.store.files.disk_writes import FULL
from app.store.files.download_snapshots import Snapshot
from app.store.files.mapped_tensor import MappedContent
from app.store.files.regular_file import is_regular, open_regular, read_at
from app.store.files.remove_leftovers import file_names
from app.store.files.tensor_file import DAMAGED, PAGE, BadFile, Description, HeaderWord, decode_page, page_version
from app.store.maintenance import backup_manifest
from app.store.maintenance.backup_manifest import CONTENTS, BackupRefused, Manifest, SavedVersion, file_of
from app.store.maintenance.unclaimed_store import UnclaimedStore
from app.store.scatters.scatter_log import BrokenLog, ScatterLog
from app.store.scatters.writable_tensor import WritableTensor, dirty_blocks

_ROUNDS: Final = 20
_OPEN_FILES: Final = 256
"""Files of contents that are held open, so that they can be copied though they may be removed meanwhile."""


class DamagedVersions(Exception):
    """Some versions are damaged, and the backup was not to leave them out; the one before stays as it was.

    `reasons` says what is wrong, by the reference.
    """

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class BackupResult:
    """What a backup holds: how many versions, how many of them and bytes were copied, and what was left out and why."""

    versions: int
    aliases: int
    copied: int
    copied_bytes: int
    left_out: dict[str, str]


def back_up(store_folder: Path, folder: Path, *, skip_damaged: bool = False) -> BackupResult:
    """Bring the backup in `folder` up to date, or make it.

    `skip_damaged` leaves out versions that are damaged, and aliases of them. Raises StoreRefused, DamagedVersions and
    OSError; the backup that was there is then as it was.
    """
    if store_folder.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(
        store_folder.resolve()
    ):
        raise BackupRefused(f"{folder} and the store {store_folder} lie one within the other: give another folder")
    store = UnclaimedStore(store_folder)
    try:
        backup_manifest.prepare(folder)
        with backup_manifest.locked(folder):
            return _Backup(store, folder).run(skip_damaged=skip_damaged)
    finally:
        store.close()


class _Vanished(Exception):
    """The content was replaced or removed before it could be copied, or its copy was spoilt by a restart."""


class _Backup:
    """One run. `_saved` are the copies by the files of the store that they are of; `_damaged` says what is wrong."""

    def __init__(self, store: UnclaimedStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._contents = folder / CONTENTS
        before = backup_manifest.read(folder)
        self._before = {one.row.file: one for one in before.versions} if before is not None else {}
        self._saved: dict[str, SavedVersion] = {}
        self._damaged: dict[str, str] = {}
        self._copied = self._copied_bytes = 0

    def run(self, *, skip_damaged: bool) -> BackupResult:
        """See `back_up`."""
        self._remove_strays(self._before)
        try:
            moment, made = self._copy_all()
            left_out = {row.reference: self._damaged[row.file] for row in moment.rows if row.file in self._damaged}
            if left_out and not skip_damaged:
                raise DamagedVersions(left_out)
            versions = [
                replace(self._saved[row.file], row=replace(row, file=self._saved[row.file].row.file))
                for row in moment.rows
                if row.file not in self._damaged
            ]
            kept = {one.row.reference for one in versions}
            aliases = [alias for alias in moment.aliases if alias.reference in kept]
            left_out |= {
                alias.alias: f"an alias of {alias.reference}" for alias in moment.aliases if alias not in aliases
            }
            disk_writes.fsync_folder(self._contents)
            names = {one.row.name for one in versions}
            last_versions = [
                replace(one, removed=0) if one.removed is None and one.name not in names else one
                for one in moment.last_versions
            ]
            manifest = Manifest(made, versions, aliases, last_versions, moment.version_floor)
            backup_manifest.write(self._folder, manifest)
        except BaseException:
            with suppress(OSError, BackupRefused):
                now = backup_manifest.read(self._folder)
                self._remove_strays({} if now is None else [one.row.file for one in now.versions])
            raise
        self._remove_strays([one.row.file for one in versions])
        return BackupResult(len(versions), len(aliases), self._copied, self._copied_bytes, left_out)

    def _remove_strays(self, known: Collection[str]) -> None:
        for name in file_names(self._contents):
            if name not in known:
                disk_writes.unlink(self._contents / name)

    def _copy_all(self) -> tuple[CatalogueContents, int]:
        """Copy what is missing until all that the catalogue had at a moment is there: it as it was then, and when."""
        for _ in range(_ROUNDS):
            with self._moment() as (moment, made, opened):
                for row in moment.rows:
                    if not self._is_done(row):
                        with suppress(_Vanished):
                            self._copy(row, opened.get(row.file, -1))
                if all(map(self._is_done, moment.rows)):
                    return moment, made
        raise BackupRefused(f"the store {self._store.folder} changes faster than it can be copied: try again later")

    def _is_done(self, row: Row) -> bool:
        return row.file in self._saved or row.file in self._damaged

    @contextmanager
    def _moment(self) -> Iterator[tuple[CatalogueContents, int, dict[str, int]]]:
        """The catalogue as it is now, the time, and the first files that have not been copied, held open."""
        with ExitStack() as stack:
            opened: dict[str, int] = {}
            with self._store.locks.catalogue():
                moment, made = self._store.catalogue.contents(), time.time_ns()
                for row in moment.rows:
                    if len(opened) == _OPEN_FILES:
                        break
                    if not self._is_done(row):
                        with suppress(OSError):  # it is found to be damaged when it is to be copied
                            fd = open_regular(self._store.tensor_folder / row.file)
                            stack.callback(os.close, fd)
                            opened[row.file] = fd
            yield moment, made, opened

    def _copy(self, row: Row, opened: int) -> None:
        """Copy a content, unless it is found to be damaged; `opened` is a descriptor of its file or -1.

        Raises _Vanished, BackupRefused and OSError.
        """
        try:
            with ExitStack() as stack, ExitStack() as lock:
                lock.enter_context(self._store.locks.tensor(row.name))
                source = self._source(row, opened, stack)
                if source is None:
                    return
                if not source.needs_lock:
                    lock.close()
                self._write(row, source)
        except (GatherError, BadFile) as problem:
            if isinstance(problem, GatherError) and problem.code != "tensor_damaged":
                raise BackupRefused(f"{row.reference} could not be copied: {problem.detail}") from None
            if self._store.catalogue.row(row.name, row.version) != row:
                raise _Vanished from None
            self._damaged[row.file] = problem.detail if isinstance(problem, GatherError) else str(problem)

    def _source(self, row: Row, opened: int, stack: ExitStack) -> _Source | None:
        """What is to be copied of a content, None where the backup has it; within the tensor's lock."""
        path = self._store.tensor_folder / row.file
        if not path.exists():
            if opened >= 0:
                return self._source_of_removed(row, opened, stack)
            if self._store.catalogue.row(row.name, row.version) == row:
                raise BadFile("its file is missing")
            raise _Vanished
        with self._store.open(row) as writable:
            sequence = writable.version >> 1
            if self._has(row, sequence):
                return None
            description, modified = writable.description, writable.words[HeaderWord.MODIFIED]
            changed = _changed_blocks(writable)
            fd = open_regular(path)
            stack.callback(os.close, fd)
            checksums = read_at(fd, description.checksums_at, 4 * description.block_count)
            target = self._target(row, sequence, stack)
            source = _Source(description, sequence, modified, checksums, changed, target, None)
            if disk_writes.clone(fd, target):
                return source
            if description.dtype == "string":  # no scatter changes its file
                return replace(source, read=_reader(fd))
            content = MappedContent(path, row, nullcontext)
            try:
                snapshot = Snapshot(content, self._store.snapshot_folder)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return replace(source, read=_reader(fd), needs_lock=True)
            stack.callback(snapshot.close)
            return replace(source, read=snapshot.read, snapshot=snapshot)

    def _source_of_removed(self, row: Row, opened: int, stack: ExitStack) -> _Source | None:
        """The same for a content that has been replaced or removed since its file was opened: nothing changes it."""
        page = os.pread(opened, PAGE, 0)
        description = decode_page(page, os.fstat(opened).st_size)
        version = page_version(page)
        if version & 1 or version & DAMAGED:
            raise _Vanished
        if (description.id, description.name) != (row.content, row.name):
            raise BadFile("its file describes another tensor")
        if self._has(row, version >> 1):
            return None
        modified = int.from_bytes(page[8:16], "little")
        checksums = read_at(opened, description.checksums_at, 4 * description.block_count)
        # Its log, which told the blocks that scatters have changed, is gone: it may be any of them.
        changed = range(description.block_count) if version else ()
        target = self._target(row, version >> 1, stack)
        return _Source(description, version >> 1, modified, checksums, changed, target, _reader(opened))

    def _has(self, row: Row, sequence: int) -> bool:
        """Whether the backup has this content at this sequence, which is then that of the file of `row`."""
        saved = self._before.get(file_of(row, sequence))
        if saved is None:
            return False
        path = self._contents / saved.row.file
        if not is_regular(path) or path.stat().st_size != saved.row.file_size:
            return False
        self._saved[row.file] = saved
        return True

    def _target(self, row: Row, sequence: int, stack: ExitStack) -> int:
        path = self._contents / file_of(row, sequence)
        disk_writes.unlink(path)  # of a copy that was cut short
        target = disk_writes.create(path)
        stack.callback(os.close, target)
        return target

    def _write(self, row: Row, source: _Source) -> None:
        description = source.description
        try:
            digest = copy_content(
                source.read, description, source.sequence, source.modified, source.checksums, source.changed,
                source.target,
            )  # fmt: skip
        finally:
            if source.snapshot is not None and not source.snapshot.is_whole:
                raise _Vanished  # a service that has started removed the snapshot; scatters may be in what was read
        file = file_of(row, source.sequence)
        self._saved[row.file] = SavedVersion(replace(row, file=file), digest)
        self._copied += 1
        self._copied_bytes += description.file_size


@dataclass(frozen=True, slots=True)
class _Source:
    """A content to be copied, as `copy_content` takes it.

    `needs_lock` says that the store's disk has no room for a snapshot, so that scatters wait until it has been copied.
    """

    description: Description
    sequence: int
    modified: int
    checksums: bytes
    changed: Collection[int]
    target: int
    read: Read | None
    snapshot: Snapshot | None = None
    needs_lock: bool = False


def _reader(fd: int) -> Read:
    return lambda begin, end: read_at(fd, PAGE + begin, end - begin)


def _changed_blocks(writable: WritableTensor) -> set[int]:
    """The blocks that scatters have changed since the last checkpoint, by the log. Raises BadFile and OSError."""
    try:
        records = ScatterLog(writable.log.path).read(repair=False)
    except BrokenLog:
        raise BadFile("its log is damaged") from None
    return dirty_blocks(records)

"""Back up a store, even while a service is changing it, to a folder that may hold an older backup.

A backup holds the catalogue as of one moment: versions, aliases and last version numbers. For each version, it holds
the data with all scatters up to some moment during the backup; that moment may differ between versions. Everything that
was acknowledged before the backup began is included.

The tensor's lock is held while a snapshot (`download_snapshots`) is taken, but not while a version is copied from it,
so scatters continue. Concurrent uploads and removals may delete versions that the backup's catalogue lists. The backup
therefore works in rounds. Each round reads the catalogue and opens files of versions that have not been copied yet,
both while holding the catalogue's lock, and then copies those versions. The backup ends after a round that has copied
everything in its catalogue. Versions that the folder already holds at the same sequence are not copied again.

After a power loss, a replicated version may be unsettled, because other machines decide what is committed. The backup
waits for it to settle. After `PATIENCE_S` seconds, it continues with the copy from the previous backup or without that
version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_rows import KEYS, CatalogueContents, Row
from app.store.files import disk_writes
from app.store.files.regular_file import is_regular, open_regular
from app.store.files.remove_leftovers import file_names
from app.store.files.tensor_file import BadFile, is_settled
from app.store.maintenance import backup_manifest
from app.store.maintenance.backup_manifest import CONTENTS, BackupRefused, Manifest, file_of, files_of
from app.store.maintenance.backup_sources import CopySource, copy_content, present_sources, removed_sources
from app.store.maintenance.unclaimed_store import UnclaimedStore
from app.store.store_errors import unsettled

_ROUNDS: Final = 20
PATIENCE_S: Final = 10.0
"""Maximum seconds to wait for unsettled contents, in total."""
_PAUSE_S: Final = 0.1
_OPEN_FILES: Final = 256
"""Maximum number of files held open at a time, so that they can be copied even if the store removes them."""


class DamagedVersions(Exception):
    """Some versions are damaged and must not be skipped. The previous backup is unchanged.

    `reasons` describes the damage of each version, by reference.
    """

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The result of a backup: how many versions and aliases it holds, and how many versions and bytes were copied.

    `left_out` says why each missing version or alias is missing. `kept` lists the versions whose copy is still the one
    from the previous backup, and says why.
    """

    versions: int
    aliases: int
    copied: int
    copied_bytes: int
    left_out: dict[str, str]
    kept: dict[str, str] = field(default_factory=dict)


def back_up(store_folder: Path, folder: Path, *, skip_damaged: bool = False) -> BackupResult:
    """Create the backup in `folder`, or update it.

    If `skip_damaged` is true, damaged versions and their aliases are left out. Raises StoreRefused, DamagedVersions and
    OSError; an existing backup is then unchanged.
    """
    if store_folder.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(
        store_folder.resolve()
    ):
        raise BackupRefused(f"{folder} and the store {store_folder} must not contain each other: use another folder")
    with closing(UnclaimedStore(store_folder)) as store:
        backup_manifest.prepare(folder)
        with backup_manifest.lock_backup(folder):
            return _Backup(store, folder).run(skip_damaged=skip_damaged)


class _Backup:
    """One run of a backup.

    `_saved` maps each file of the store to its file in the backup. `_damaged` describes the damage in files that cannot
    be copied, and `_unsettled` says why other files cannot be copied now.
    """

    def __init__(self, store: UnclaimedStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._contents = folder / CONTENTS
        self._before = files_of(backup_manifest.read(folder))
        self._saved: dict[str, str] = {}
        self._damaged: dict[str, str] = {}
        self._unsettled: dict[str, str] = {}
        self._copied = self._copied_bytes = 0

    def run(self, *, skip_damaged: bool) -> BackupResult:
        self._remove_strays(self._before)
        try:
            moment, made = self._copy_all()
            left_out = {row.reference: self._damaged[row.file] for row in moment.rows if row.file in self._damaged}
            if left_out and not skip_damaged:
                raise DamagedVersions(left_out)
            waiting = [row for row in moment.rows if row.file in self._unsettled]
            kept = {row.reference: self._unsettled[row.file] for row in waiting if self._has_older_copy(row)}
            left_out |= {row.reference: self._unsettled[row.file] for row in waiting if row.reference not in kept}
            rows = [replace(row, file=self._saved[row.file]) for row in moment.rows if row.file in self._saved]
            saved = {row.reference for row in rows}
            aliases = [alias for alias in moment.aliases if alias.reference in saved]
            left_out |= {
                alias.alias: f"an alias of {alias.reference}" for alias in moment.aliases if alias not in aliases
            }
            disk_writes.fsync_folder(self._contents)
            names = {row.name for row in rows}
            last_versions = [
                replace(one, removed=0) if one.removed is None and one.name not in names else one
                for one in moment.last_versions
            ]
            manifest = Manifest(made, replace(moment, rows=rows, aliases=aliases, last_versions=last_versions))
            backup_manifest.write(self._folder, manifest)
        except BaseException:
            with suppress(OSError, BackupRefused):
                self._remove_strays(files_of(backup_manifest.read(self._folder)))
            raise
        self._remove_strays(files_of(manifest))
        return BackupResult(len(rows), len(aliases), self._copied, self._copied_bytes, left_out, kept)

    def _remove_strays(self, known: Collection[str]) -> None:
        for name in file_names(self._contents):
            if name not in known:
                disk_writes.unlink(self._contents / name)

    def _copy_all(self) -> tuple[CatalogueContents, int]:
        """Copy in rounds until every version in a round's catalogue is done. Returns that catalogue and its time."""
        for _ in range(_ROUNDS):
            with self._open_moment() as (moment, made, opened):
                self._copy_each([row for row in moment.rows if not self._is_done(row)], opened)
                if all(map(self._is_done, moment.rows)):
                    return moment, made
        raise BackupRefused(f"the store {self._store.folder} changes faster than it can be copied: try again later")

    def _copy_each(self, rows: Sequence[Row], opened: Mapping[str, int]) -> None:
        """Copy versions, waiting for unsettled ones."""
        ends = time.monotonic() + PATIENCE_S
        while True:
            for row in rows:
                self._copy(row, opened.get(row.file, -1), opened.get(row.key_file, -1))
            rows = [row for row in rows if row.file in self._unsettled]
            if not rows or time.monotonic() > ends:
                return
            time.sleep(_PAUSE_S)

    def _is_done(self, row: Row) -> bool:
        return row.file in self._saved or row.file in self._damaged or row.file in self._unsettled

    @contextmanager
    def _open_moment(self) -> Iterator[tuple[CatalogueContents, int, dict[str, int]]]:
        """Yield the current catalogue, the time, and the open files of versions that have yet to be copied."""
        with ExitStack() as stack:
            opened: dict[str, int] = {}
            with self._store.locks.catalogue():
                moment, made = self._store.catalogue.contents(), time.time_ns()
                for row in moment.rows:
                    if len(opened) >= _OPEN_FILES:
                        break
                    if not self._is_done(row):
                        with suppress(OSError):  # the copy will report the damage
                            for name in (row.file,) if row.keys is None else (row.file, row.key_file):
                                fd = open_regular(self._store.tensor_folder / name)
                                stack.callback(os.close, fd)
                                opened[name] = fd
            yield moment, made, opened

    def _copy(self, row: Row, opened: int, keys: int) -> None:
        """Copy a version's content, unless it is damaged, replaced or removed.

        `opened` and `keys` are the descriptors of its file and its key file, or -1. Raises BackupRefused and OSError.
        """
        self._unsettled.pop(row.file, None)
        try:
            with ExitStack() as stack:
                with self._store.locks.tensor(row.name):
                    sources = self._sources(row, opened, keys, stack)
                if sources:
                    self._write(row, sources)
        except (GatherError, BadFile) as problem:
            if isinstance(problem, GatherError) and problem.code == "overloaded":
                self._unsettled[row.file] = problem.detail
                return
            if isinstance(problem, GatherError) and problem.code != "tensor_damaged":
                raise BackupRefused(f"{row.reference} could not be copied: {problem.detail}") from None
            if self._store.catalogue.row(row.name, row.number) == row:
                self._damaged[row.file] = problem.detail if isinstance(problem, GatherError) else str(problem)

    def _sources(self, row: Row, opened: int, keys: int, stack: ExitStack) -> list[CopySource] | None:
        """Return the files to copy for a version, or None if the version is gone or the backup already has it.

        Call this while holding the tensor's lock.
        """
        path = self._store.tensor_folder / row.file
        if not path.exists():
            if opened >= 0:
                sources = removed_sources(row, opened, keys)
                return None if sources is None or self._has_copy(row, sources[0].sequence) else sources
            if self._store.catalogue.row(row.name, row.number) == row:
                raise BadFile("its file is missing")
            return None
        with self._store.logs.open(row) as writable:
            if not is_settled(writable.words):
                raise unsettled()
            if self._has_copy(row, writable.applied):
                return None
            return present_sources(writable, self._store.tensor_folder, self._store.snapshot_folder, stack)

    def _has_copy(self, row: Row, sequence: int) -> bool:
        """Return whether the backup has this content at this sequence. If so, register its file for `row`."""
        file = file_of(row, sequence)
        path = self._contents / file
        if file not in self._before or not is_regular(path) or path.stat().st_size != row.file_size:
            return False
        if row.keys is not None and not is_regular(self._contents / (file + KEYS)):
            return False
        self._saved[row.file] = file
        return True

    def _has_older_copy(self, row: Row) -> bool:
        """Return whether the previous backup has this content at any sequence. If so, register that file for `row`."""
        saved = (file.removesuffix(KEYS) for file in self._before if file.startswith(f"{row.content}-"))
        found = [int(file.rpartition("-")[2]) for file in saved]
        return bool(found) and self._has_copy(row, max(found))

    def _write(self, row: Row, sources: Sequence[CopySource]) -> None:
        """Copy the files of a version's content. Raises BadFile and OSError."""
        file = file_of(row, sources[0].sequence)
        for source, suffix in reversed([*zip(sources, ("", KEYS), strict=False)]):
            self._copy_file(source, file + suffix)
        self._saved[row.file] = file
        self._copied += 1

    def _copy_file(self, source: CopySource, file: str) -> None:
        disk_writes.unlink(self._contents / file)  # an interrupted copy may have left the file
        target = disk_writes.create(self._contents / file)
        try:
            copy_content(source, target)
        finally:
            os.close(target)
        self._copied_bytes += source.description.file_size

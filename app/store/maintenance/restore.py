"""Create a store from a backup, in a folder that does not hold one.

Each version gets a new content ID and each alias gets a new ETag, because the original store may live on and change,
and no ETag may refer to different data in two stores. Names, version numbers, times and each name's last version number
are kept. A backup holds no Idempotency-Keys: if a scatter is newer than the backup and its client retries it, the
scatter must be executed again. A backup does not hold import records either.

The file `format` gets its name only after everything else is complete and durable, so until then no service starts on
the folder. An interrupted restore can be run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import orjson

from app.store.catalogue.catalogue_database import FILE, Catalogue
from app.store.catalogue.catalogue_rows import KEYS, Row
from app.store.catalogue.store_format import ALLOWED_WITHOUT_FORMAT, FORMAT, RESTORING
from app.store.files import disk_writes
from app.store.files.file_system_check import CONTENT_FOLDERS, check_folder, check_layout
from app.store.files.key_files import build_index
from app.store.files.regular_file import NotRegular
from app.store.files.remove_leftovers import file_names
from app.store.files.tensor_file import BadFile
from app.store.files.whole_file import write_whole_file
from app.store.maintenance import backup_manifest
from app.store.maintenance.backup_manifest import CONTENTS, BackupRefused, Manifest
from app.store.maintenance.backup_sources import CopySource, SealedFile, copy_content
from app.store.processes.directory_lock import ProcessGroup, StoreRefused

_ALLOWED: Final = (*ALLOWED_WITHOUT_FORMAT, f"{RESTORING}.new")
_ALLOWED_OF_RESTORE: Final = (*_ALLOWED, RESTORING, *CONTENT_FOLDERS)
"""Entries that an interrupted restore may leave."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The number of restored versions and aliases, the total file size in bytes, and when the backup was made."""

    versions: int
    aliases: int
    size: int
    made: int


def restore(folder: Path, store_folder: Path) -> RestoreResult:
    """Create a store in `store_folder` from the backup in `folder`. Raises StoreRefused and OSError."""
    backup_manifest.check_marker(folder)
    with backup_manifest.lock_backup(folder):
        manifest = backup_manifest.read(folder)
        if manifest is None:
            raise BackupRefused(f"{folder} is a backup that was not finished: run the command that makes it again")
        check_folder(store_folder)
        _check_target(store_folder)
        store_folder.mkdir(parents=True, exist_ok=True)
        group = ProcessGroup(store_folder)
        try:
            _check_target(store_folder)
            return _Restore(folder / CONTENTS, manifest, store_folder).run()
        finally:
            group.close()


def _check_target(folder: Path) -> None:
    """Raise StoreRefused if the folder holds a store or foreign files."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StoreRefused(f"{folder} is not a folder")
    if (folder / "format").exists():
        raise StoreRefused(f"{folder} has a store already: use an empty folder or a new one")
    names = file_names(folder)
    foreign = [name for name in names if name not in (_ALLOWED_OF_RESTORE if RESTORING in names else _ALLOWED)]
    if foreign:
        raise StoreRefused(f"{folder} holds {min(foreign)!r}: use an empty folder or a new one")
    check_layout(folder)


class _Restore:
    """One run of a restore, in a folder claimed by this process."""

    def __init__(self, contents: Path, manifest: Manifest, folder: Path) -> None:
        self._contents = contents
        self._manifest = manifest
        self._folder = folder
        self._tensors = folder / "tensors"

    def run(self) -> RestoreResult:
        write_whole_file(self._folder / RESTORING, orjson.dumps({"format": FORMAT}))
        for name in CONTENT_FOLDERS:
            (self._folder / name).mkdir(exist_ok=True)
            for left in file_names(self._folder / name):  # an interrupted restore may have left these files
                disk_writes.unlink(self._folder / name / left)
        saved = self._manifest.catalogue
        rows = [self._restore_version(row) for row in saved.rows]
        disk_writes.fsync_folder(self._tensors)
        aliases = [replace(alias, etag=f'"{uuid4().hex}"') for alias in saved.aliases]
        Catalogue(self._folder / FILE).create(replace(saved, rows=rows, aliases=aliases))
        disk_writes.rename(self._folder / RESTORING, self._folder / "format")
        try:
            disk_writes.fsync_folder(self._folder)
        except OSError:
            # The rename may not survive a power loss. Undo it, so that the restore counts as unfinished and can be run
            # again.
            with suppress(OSError):
                disk_writes.rename(self._folder / "format", self._folder / RESTORING)
            raise
        return RestoreResult(len(rows), len(aliases), sum(row.total_size for row in rows), self._manifest.made)

    def _restore_version(self, row: Row) -> Row:
        """Copy a version to new files, and return its row.

        Raises OSError, and BackupRefused if the content is damaged.
        """
        new = uuid4().hex
        restored = replace(row, content=new, file=new)
        try:
            for source, name in zip(open_saved(self._contents, row), restored.files, strict=False):
                with closing(source):
                    self._copy(source, name, new)
            if restored.keys is not None:
                build_index(self._tensors, self._tensors, restored)
        except BadFile as problem:
            raise BackupRefused(f"{row.reference} is damaged in the backup: {problem}") from None
        return restored

    def _copy(self, source: SealedFile, name: str, content: str) -> None:
        """Copy a file of the content with the ID `content` to `name`. Raises BadFile and OSError."""
        target = disk_writes.create(self._tensors / name)
        try:
            description = replace(source.description, id=content)
            restored = CopySource(description, 0, source.modified, source.checksums, source.read, words=source.words)
            copy_content(restored, target)
        finally:
            os.close(target)


def open_saved(contents: Path, row: Row) -> Iterator[SealedFile]:
    """Yield the files of a version in a backup: first the row file, then any key file. Their blocks are still
    unchecked.

    The caller closes them. Raises BadFile and OSError.
    """
    rows = _open_sealed(contents / row.file)
    about = rows.description
    sequence = row.file.rpartition("-")[2]
    found = about.id, about.name, about.dtype, about.shape, about.size, about.sha256, str(rows.sequence)
    if found != (row.content, row.name, row.dtype, row.shape, row.size, row.sha256, sequence):
        rows.close()
        raise BadFile("its file is not the one that the manifest names")
    yield rows
    if row.keys is not None:
        keys = _open_sealed(contents / (row.file + KEYS))
        about = keys.description
        if (about.id, about.name, about.sha256) != (row.content, row.name, row.keys.sha256):
            keys.close()
            raise BadFile("its key file is not the one that the manifest names")
        yield keys


def _open_sealed(path: Path) -> SealedFile:
    try:
        return SealedFile(path)
    except FileNotFoundError:
        raise BadFile("its file is missing") from None
    except NotRegular as problem:
        raise BadFile(f"its file cannot be read: {problem.strerror}") from None

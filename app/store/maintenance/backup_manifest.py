"""The folder of a backup: its files, and the manifest that makes it valid.

    gathernd-backup     marks the folder as a backup; a command that works on it holds a lock (flock) on this file
    contents/           one file for each version at one sequence, as written by `copy_content`, named
                        `ID-SEQUENCE` or `ID-FILE-SEQUENCE`; if the version has keys, also a key file with the
                        same name and the suffix `.keys`
    manifest.json       one line with the format and the SHA-256 of the rest; then the `Manifest` as JSON

The manifest is written last and atomically replaces the previous one. Files that it no longer lists are removed after
that. An interrupted backup therefore leaves the previous backup unchanged, or no backup if there was none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from pydantic import TypeAdapter

from app.store.catalogue.catalogue_rows import KEYS, CatalogueContents, Row
from app.store.files import disk_writes
from app.store.files.regular_file import NotRegular, mode_of, open_regular, read_regular
from app.store.files.whole_file import write_whole_file
from app.store.processes.directory_lock import StoreRefused
from app.store.processes.store_locks import try_lock
from app.tensors.tensor_name import TENSOR_NAME

MARKER: Final = "gathernd-backup"
CONTENTS: Final = "contents"
MANIFEST: Final = "manifest.json"
_FORMAT: Final = 3
_READ: Final = (1, _FORMAT)
"""The formats that can be read. Format 1 had no keys."""
_ALLOWED_IN_NEW: Final = (f"{MARKER}.new", "lost+found")
_FILE: Final = re.compile(r"[0-9a-f]{1,64}(-[0-9a-f]{1,64})?-[0-9]{1,19}")


class BackupRefused(StoreRefused):
    """The folder cannot be used as a backup. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup contains: the catalogue as of `made`, in nanoseconds since 1970.

    Each row's `file` is the name of the version's file in the backup.
    """

    made: int
    catalogue: CatalogueContents


_MANIFEST: Final = TypeAdapter(Manifest)


def prepare(folder: Path) -> None:
    """Prepare a folder for backups. Raises OSError, and BackupRefused if the folder holds anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    if mode_of(folder / MARKER) is None:
        foreign = [path.name for path in folder.iterdir() if path.name not in _ALLOWED_IN_NEW]
        if foreign:
            raise BackupRefused(
                f"{folder} is not a backup (it contains {min(foreign)!r}): use an empty folder or a new one"
            )
        disk_writes.fsync_folder(folder.absolute().parent)
        write_whole_file(folder / MARKER, orjson.dumps({"format": _FORMAT}))
    check_marker(folder)
    (folder / CONTENTS).mkdir(exist_ok=True)


def check_marker(folder: Path) -> None:
    """Raise BackupRefused unless the folder is a backup in a known format. May raise OSError."""
    try:
        found = orjson.loads(read_regular(folder / MARKER))["format"]
    except (FileNotFoundError, NotADirectoryError):
        raise BackupRefused(f"{folder} is not a backup of gathernd: it has no file {MARKER!r}") from None
    except NotRegular as problem:
        raise BackupRefused(f"{folder / MARKER} cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError):
        found = None
    if found not in _READ:
        raise BackupRefused(f"{folder} is a backup of a format that this gathernd does not know")


@contextmanager
def lock_backup(folder: Path) -> Iterator[None]:
    """Keep other commands from using the folder.

    Raises OSError, and BackupRefused if another command is using the folder.
    """
    fd = open_regular(folder / MARKER)
    try:
        if not try_lock(fd):
            raise BackupRefused(f"another command is using the backup {folder}: wait until it has ended")
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def write(folder: Path, manifest: Manifest) -> None:
    """Durably and atomically write the folder's manifest. Raises OSError."""
    body = _MANIFEST.dump_json(manifest)
    head = orjson.dumps({"format": _FORMAT, "sha256": hashlib.sha256(body).hexdigest()})
    write_whole_file(folder / MANIFEST, head + b"\n" + body)


def read(folder: Path) -> Manifest | None:
    """Return the manifest, or None if there is none. Raises OSError, and BackupRefused if the manifest is damaged."""
    try:
        head, _, body = read_regular(folder / MANIFEST).partition(b"\n")
    except FileNotFoundError:
        return None
    except NotRegular as problem:
        raise BackupRefused(f"{folder / MANIFEST} cannot be read: {problem.strerror}: use another backup") from None
    try:
        about = orjson.loads(head)
        if about["format"] not in _READ or about["sha256"] != hashlib.sha256(body).hexdigest():
            raise ValueError
        manifest = _MANIFEST.validate_json(body)
        # File names from the manifest are used as paths.
        if not all(TENSOR_NAME.fullmatch(row.name) and _FILE.fullmatch(row.file) for row in manifest.catalogue.rows):
            raise ValueError
        return manifest
    except (ValueError, KeyError, TypeError):
        raise BackupRefused(
            f"{folder / MANIFEST} is damaged or was changed: use another backup, or make one in another folder"
        ) from None


def files_of(manifest: Manifest | None) -> set[str]:
    """Return the names of a backup's files in `contents/`."""
    if manifest is None:
        return set()
    return {name for row in manifest.catalogue.rows for name in _files(row)}


def _files(row: Row) -> tuple[str, ...]:
    return (row.file,) if row.keys is None else (row.file, row.file + KEYS)


def file_of(row: Row, sequence: int) -> str:
    """Return the name of the file in a backup that holds the content of `row` after `sequence` scatters."""
    # A keyed table that has grown has a new file, and the larger and the smaller file may have been at the same
    # sequence.
    grown = row.keys is not None and row.file != row.content
    return f"{row.content}-{row.file}-{sequence}" if grown else f"{row.content}-{sequence}"

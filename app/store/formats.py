"""The version of the store's layout, and the way from older ones to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import orjson

from app.store import disk

FORMAT: Final = 1
UPGRADES: Final[Mapping[int, Callable[[Path], None]]] = {}
"""What makes version n + 1 of version n. An upgrade that a crash cuts short is run again, so it must allow for that."""

_OF_NO_FORMAT: Final = ("lock", "members", "state", "locks", "format.new", "lost+found")


class UnknownFormat(Exception):
    """The folder is not one that this version of the service can read; the text says why."""


def version_of(folder: Path) -> int | None:
    """The format of a folder, None of one that is to become a store. Changes nothing. Raises UnknownFormat."""
    path = folder / "format"
    try:
        version = orjson.loads(path.read_bytes())["format"]
    except FileNotFoundError:
        foreign = [entry.name for entry in folder.iterdir() if entry.name not in _OF_NO_FORMAT]
        if foreign:
            raise UnknownFormat(
                f"{folder} is not the folder of a store: it has no file 'format' and holds {min(foreign)!r}"
            ) from None
        return None
    except (ValueError, KeyError, TypeError):
        version = None
    if type(version) is not int:
        raise UnknownFormat(f"{path} cannot be read as the version of a store")
    return version


def prepare(folder: Path) -> None:
    """Bring the folder to the current format. Raises UnknownFormat and OSError."""
    version = version_of(folder)
    if version is None:
        _write(folder, FORMAT)
        return
    if version > FORMAT:
        raise UnknownFormat(f"{folder} has format {version}, of a newer gathernd; this one knows up to {FORMAT}")
    while version < FORMAT:
        if version not in UPGRADES:
            raise UnknownFormat(f"{folder} has format {version}, which nothing here can bring to {FORMAT}")
        UPGRADES[version](folder)
        version += 1
        _write(folder, version)


def _write(folder: Path, version: int) -> None:
    path = folder / "format.new"
    disk.unlink(path)
    fd = disk.create(path)
    try:
        disk.write(fd, orjson.dumps({"format": version}))
        disk.fsync(fd)
    finally:
        os.close(fd)
    disk.rename(path, folder / "format")
    disk.fsync_folder(folder)

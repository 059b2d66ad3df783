"""The format of a store: a number in its file `format`. Stores with any format but the supported one are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson

from app.store.catalogue.catalogue_database import FILE, FILES, Catalogue
from app.store.files.regular_file import NotRegular, read_regular
from app.store.files.whole_file import write_whole_file
from app.store.processes.directory_lock import StoreRefused

FORMAT: Final = 8
RESTORING: Final = "restoring"
"""The name that `restore` gives to the file `format` until everything else is complete."""
ALLOWED_WITHOUT_FORMAT: Final = ("lock", "members", "state", "locks", "shard", "format.new", "lost+found", *FILES)


def version_of(folder: Path) -> int | None:
    """Return the format of the store in a folder, or None if the folder is empty.

    Changes nothing. Raises StoreRefused.
    """
    path = folder / "format"
    try:
        version = orjson.loads(read_regular(path))["format"]
    except FileNotFoundError:
        if (folder / RESTORING).exists():
            raise StoreRefused(
                f"a restore into {folder} has not finished: let it end, or give 'gathernd store restore' again"
            ) from None
        foreign = [entry.name for entry in folder.iterdir() if entry.name not in ALLOWED_WITHOUT_FORMAT]
        if foreign:
            raise StoreRefused(
                f"{folder} is not the folder of a store: it has no file 'format' and holds {min(foreign)!r}"
            ) from None
        return None
    except NotRegular as problem:
        raise StoreRefused(f"{path} cannot be read as the version of a store: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError):
        version = None
    if type(version) is not int:
        raise StoreRefused(f"{path} cannot be read as the version of a store")
    return version


def check_format(folder: Path) -> None:
    """Raise StoreRefused if the folder does not hold a store, or holds a store with a different format."""
    version = version_of(folder) if folder.is_dir() else None
    if version is None:
        raise StoreRefused(f"{folder} has no store")
    _refuse_other(folder, version)


def prepare(folder: Path) -> None:
    """Create a store in a folder if it is empty. Raises OSError, and StoreRefused if it holds a different format."""
    version = version_of(folder)
    if version is not None:
        _refuse_other(folder, version)
        return
    Catalogue(folder / FILE).create()
    write_whole_file(folder / "format", orjson.dumps({"format": FORMAT}))


def _refuse_other(folder: Path, version: int) -> None:
    if version != FORMAT:
        raise StoreRefused(
            f"{folder} has a store of format {version}, and this gathernd reads format {FORMAT} alone: download its "
            "tensors from the service that wrote it, and upload them to a new store"
        )

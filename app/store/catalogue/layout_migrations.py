"""The version of the store's layout on disk, and the upgrades from older ones.

1   no catalogue: a tensor's file is named by the SHA-256 of its name, Idempotency-Keys are in the redo logs alone
2   `catalogue.sqlite`; files from before the upgrade keep their names until their tensors are replaced
3   versions and aliases in the catalogue: what there was is version 1 of its name
4   the catalogue forgets names whose tensors were removed long ago
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import orjson

from app.store.catalogue.catalogue import FILE, FILES, Catalogue
from app.store.catalogue.catalogue_rows import CatalogueContents, Row
from app.store.files.regular_file import NotRegular, open_regular, read_regular
from app.store.files.tensor_file import PAGE, BadFile, decode_page, digest_of, read_members
from app.store.files.whole_file import write_whole_file
from app.store.processes.directory_lock import StoreRefused

logger = logging.getLogger("gathernd")
FORMAT: Final = 4
RESTORING: Final = "restoring"
"""What `restore` names the file `format` until everything else is there."""
ALLOWED_WITHOUT_FORMAT: Final = ("lock", "members", "state", "locks", "format.new", "lost+found", *FILES)


class UnknownFormat(StoreRefused):
    """The folder is not one that this version of the service can read."""


def version_of(folder: Path) -> int | None:
    """The format of a folder, None for an empty one. Changes nothing. Raises UnknownFormat."""
    path = folder / "format"
    try:
        version = orjson.loads(read_regular(path))["format"]
    except FileNotFoundError:
        if (folder / RESTORING).exists():
            raise UnknownFormat(
                f"a restore into {folder} has not finished: let it end, or give 'gathernd store restore' again"
            ) from None
        foreign = [entry.name for entry in folder.iterdir() if entry.name not in ALLOWED_WITHOUT_FORMAT]
        if foreign:
            raise UnknownFormat(
                f"{folder} is not the folder of a store: it has no file 'format' and holds {min(foreign)!r}"
            ) from None
        return None
    except NotRegular as problem:
        raise UnknownFormat(f"{path} cannot be read as the version of a store: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError):
        version = None
    if type(version) is not int:
        raise UnknownFormat(f"{path} cannot be read as the version of a store")
    return version


def prepare(folder: Path) -> None:
    """Bring the folder to the current format. Raises UnknownFormat and OSError."""
    version = version_of(folder)
    if version is None:
        Catalogue(folder / FILE).create()
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
    write_whole_file(folder / "format", orjson.dumps({"format": version}))


def _enter_tensors(folder: Path) -> None:
    """From 1 to 2: make the catalogue from the descriptions in the files, which stay as they are."""
    rows = []
    for path in sorted((folder / "tensors").iterdir()):
        row = _row_of(path)
        if row is None:
            # A request for the tensor names it, and is answered with tensor_damaged.
            logger.error("a tensor in %s is damaged, and its name is not known", path.name)
            status = path.lstat()
            when = status.st_mtime_ns
            row = Row(f"sha256:{path.name}", path.name, path.name, "", (), 0, status.st_size, "", when, when)
        rows.append(row)
    Catalogue(folder / FILE).create(CatalogueContents(rows))


def _row_of(path: Path) -> Row | None:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            page = file.read(PAGE)
            size = os.fstat(file.fileno()).st_size
        description, members = decode_page(page, size), read_members(page)
    except (BadFile, OSError):
        return None
    if digest_of(description.name) != path.name:
        return None
    created, modified = members.get("created"), int.from_bytes(page[8:16], "little")
    return Row(
        description.name, description.id, path.name, description.dtype, description.shape, description.size, size,
        description.sha256,
        created if isinstance(created, int) else modified, modified, description.prefault, description.lock,
    )  # fmt: skip


def _upgrade_catalogue(folder: Path) -> None:
    """From 2 and from 3, in one transaction each; a catalogue that is of the present schema needs none."""
    Catalogue(folder / FILE).upgrade()


UPGRADES: Final[Mapping[int, Callable[[Path], None]]] = {
    1: _enter_tensors,
    2: _upgrade_catalogue,
    3: _upgrade_catalogue,
}
"""The upgrade from version n to n + 1, by n. Each must be repeatable: after a crash it is run again."""

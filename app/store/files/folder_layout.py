"""Find entries of the wrong kind (a file in place of a folder, or the reverse), which make a start fail.

A symbolic link in place of a folder would make the service delete another user's files.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.store import import_records
from app.store.catalogue.catalogue_database import FILES
from app.store.files import download_snapshots
from app.store.files.regular_file import kind_of, mode_of
from app.store.processes.directory_lock import StoreRefused

CONTENT_FOLDERS: Final = ("tensors", "logs", "incoming", download_snapshots.FOLDER)
"""Folders that every store has."""
FOLDERS: Final = (*CONTENT_FOLDERS, import_records.FOLDER, "locks", "shard")
_FILES: Final = (*FILES, "lock", "members", "state")
KNOWN: Final = frozenset({"format", *_FILES, *FOLDERS, "lost+found"})
"""All entries that belong in a store's folder, and `lost+found`, which a file system creates in its root."""


def misplaced(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the entries of the wrong kind in the store in `folder`: relative path and problem. Raises OSError."""
    for name in FOLDERS:
        mode = mode_of(folder / name)
        if mode is not None and not stat.S_ISDIR(mode):
            yield name, f"is no folder: it is {kind_of(mode)}"
    names = [*_FILES]
    if (folder / "locks").is_dir():
        names += sorted(f"locks/{path.name}" for path in (folder / "locks").iterdir())
    for name in names:
        mode = mode_of(folder / name)
        if mode is not None and not stat.S_ISREG(mode):
            yield name, f"cannot be read: it is {kind_of(mode)} and no file"


def check_layout(folder: Path) -> None:
    """Raise StoreRefused if `misplaced` finds anything. May raise OSError."""
    for name, problem in misplaced(folder):
        raise StoreRefused(f"{folder / name} {problem}: 'gathernd store check' says what to do")

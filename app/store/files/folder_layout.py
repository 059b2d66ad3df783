"""What stands in the place of a folder or of a fixed file of the store and is none, which a start refuses.

A link in the place of a folder would have the service remove the files of somebody else there.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.store import import_records
from app.store.catalogue.catalogue import FILES
from app.store.files import download_snapshots
from app.store.files.regular_file import kind_of, mode_of
from app.store.processes.directory_lock import StoreRefused

FOLDERS: Final = ("tensors", "logs", "incoming", download_snapshots.FOLDER, import_records.FOLDER, "locks")
_FILES: Final = (*FILES, "lock", "members", "state")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """What stands in a place of the store: its path in the folder, and what it is and should be."""

    name: str
    problem: str


def misplaced(folder: Path) -> Iterator[Misplaced]:
    """What stands in the place of a folder or a fixed file of the store in `folder`. Raises OSError."""
    for name in FOLDERS:
        mode = mode_of(folder / name)
        if mode is not None and not stat.S_ISDIR(mode):
            yield Misplaced(name, f"is no folder: it is {kind_of(mode)}")
    names = [*_FILES]
    if (folder / "locks").is_dir():
        names += sorted(f"locks/{path.name}" for path in (folder / "locks").iterdir())
    for name in names:
        mode = mode_of(folder / name)
        if mode is not None and not stat.S_ISREG(mode):
            yield Misplaced(name, f"cannot be read: it is {kind_of(mode)} and no file")


def check_layout(folder: Path) -> None:
    """Raises StoreRefused where `misplaced` finds anything, and OSError."""
    for found in misplaced(folder):
        raise StoreRefused(f"{folder / found.name} {found.problem}: 'gathernd store check' says what to do")

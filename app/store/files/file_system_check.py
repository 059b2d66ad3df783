"""Check the file system, the processor and the types of the folder's entries before a store writes anything.

An entry of the wrong type (a file instead of a folder, or the reverse) makes startup fail. A symbolic link instead of a
folder could make the service delete another user's files.
"""

from __future__ import annotations

import platform
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.store import import_records
from app.store.catalogue.catalogue_database import FILES
from app.store.files import download_snapshots
from app.store.files.regular_file import kind_of, mode_of
from app.store.processes import memory_barrier
from app.store.processes.directory_lock import StoreRefused

MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "fuse.beegfs", "fuse.ceph", "fuse.cephfs", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs",
})  # fmt: skip
_ORDERED: Final = frozenset({"x86_64", "AMD64", "i386", "i686"})
"""Processors whose loads and stores appear to other processors in order."""


def check_folder(folder: Path) -> None:
    """Raise StoreRefused for a folder on a network file system.

    Locks and mappings that work between processes may not work between machines, and fsync may be unreliable there, so
    acknowledged changes could be lost.
    """
    kind = file_system_of(folder)
    if kind in _NETWORK:
        raise StoreRefused(
            f"the store {folder} lies on a network file system ({kind}), which does not give the guarantees that the "
            "store relies on: put the store on a local disk with GATHERND_STORE_DIR"
        )


def file_system_of(folder: Path) -> str | None:
    """Return the type of the file system that contains `folder`, or None if unknown. The folder need not exist yet."""
    try:
        lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    place, kind, longest = folder.resolve(), None, -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields.split(" ")[4]))
        # If two file systems are mounted at the same path, the one mounted last is visible.
        if place.is_relative_to(mount) and len(mount.parts) >= longest:
            longest, kind = len(mount.parts), rest.split(" ")[0]
    return kind


def check_processor(processes: int) -> None:
    """Raise StoreRefused if several processes could see each other's changes to a tensor out of order."""
    fenced = memory_barrier.register()
    if processes > 1 and not fenced and platform.machine() not in _ORDERED:
        raise StoreRefused(
            f"several workers cannot share a store on this machine: its processor ({platform.machine()}) may reorder "
            "what they read, and its system has no membarrier(2) against that; serve with GATHERND_WORKERS=1"
        )


CONTENT_FOLDERS: Final = ("tensors", "logs", "incoming", download_snapshots.FOLDER)
"""Folders that every store has."""
FOLDERS: Final = (*CONTENT_FOLDERS, import_records.FOLDER, "locks", "shard")
_FILES: Final = (*FILES, "lock", "members", "state")
KNOWN: Final = frozenset({"format", *_FILES, *FOLDERS, "lost+found"})
"""All entries that belong in a store's folder, and `lost+found`, which a file system creates in its root folder."""


def find_misplaced(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the problem of each entry of the wrong type in the store in `folder`. Raises OSError."""
    for name in FOLDERS:
        mode = mode_of(folder / name)
        if mode is not None and not stat.S_ISDIR(mode):
            yield name, f"is not a folder: it is {kind_of(mode)}"
    names = [*_FILES]
    if (folder / "locks").is_dir():
        names += sorted(f"locks/{path.name}" for path in (folder / "locks").iterdir())
    for name in names:
        mode = mode_of(folder / name)
        if mode is not None and not stat.S_ISREG(mode):
            yield name, f"cannot be read: it is {kind_of(mode)}, not a file"


def check_layout(folder: Path) -> None:
    """Raise StoreRefused if `find_misplaced` finds anything. May raise OSError."""
    for name, problem in find_misplaced(folder):
        raise StoreRefused(f"{folder / name} {problem}: 'gathernd store check' says what to do")

"""Check the folder's file system and the machine's processor before anything is written."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Final

from app.store.processes import memory_barrier
from app.store.processes.directory_lock import StoreRefused

MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "smb3", "smbfs", "fuse.beegfs", "fuse.ceph", "fuse.cephfs", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs",
})  # fmt: skip
_ORDERED: Final = frozenset({"x86_64", "AMD64", "i386", "i686"})
"""Processors whose loads and stores other processors see in order."""


def check_folder(folder: Path) -> None:
    """Raise StoreRefused for a folder on a network file system.

    There, locks and mappings do not work between machines as they do between processes, and fsync may not be reliable,
    so acknowledged changes could be lost.
    """
    kind = file_system_of(folder)
    if kind in _NETWORK:
        raise StoreRefused(
            f"the store {folder} lies on a network file system ({kind}), which does not keep what the store relies on: "
            "give it a folder on a local disk with GATHERND_STORE_DIR"
        )


def file_system_of(folder: Path) -> str | None:
    """Return the type of the file system that contains `folder` (even if it does not exist yet), or None if unknown."""
    try:
        lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    place, kind, longest = folder.resolve(), None, -1
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields.split(" ")[4]))
        # If two file systems are mounted at one path, the last one mounted is visible.
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

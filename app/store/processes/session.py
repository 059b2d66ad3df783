"""A number that identifies one process group during one boot of the machine.

Within a session no write to shared memory is lost, however processes end. Between two sessions the power may have
failed, or the disk may have been replaced.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from app.store.files.regular_file import read_regular

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of the machine's current boot, empty if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def session_of(token: str) -> int:
    """Return the session of the process group with this token; never 0."""
    return int.from_bytes(hashlib.sha256(f"{boot_id()} {token}".encode()).digest()[:8], "little") | 1


def session_in(folder: Path) -> int:
    """Return the session of the last process group that owned the store in `folder`. Raises OSError."""
    return session_of(read_regular(folder / "lock").decode("latin-1"))

"""Open the store's files, refusing anything but a regular file.

Opening a named pipe could block forever while waiting for a writer, reading a device may never end, and a symbolic link
may lead to another user's file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}


class NotRegular(OSError):
    """The path of a regular file leads to something else; `strerror` says what it is."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(errno.EINVAL, f"it is {kind_of(mode)}, not a file", str(path))


def kind_of(mode: int) -> str:
    """Return a name for the kind of file that this mode indicates."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def mode_of(path: Path) -> int | None:
    """Return the mode of the entry at a path, without following links, or None if there is no entry. Raises OSError."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def is_regular(path: Path) -> bool:
    """Return whether there is a regular file at a path. Raises OSError."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISREG(mode)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file without blocking and without following a symbolic link. Returns its descriptor.

    Raises NotRegular and OSError.
    """
    found = mode_of(path)
    if found is not None and not stat.S_ISREG(found):
        raise NotRegular(path, found)
    # The entry may have changed since the check, so open it in a way that neither blocks nor follows links.
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise NotRegular(path, mode)
    return fd


def read_regular(path: Path) -> bytes:
    """Return the whole content of a file. Raises NotRegular and OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def read_at(fd: int, offset: int, size: int) -> bytes:
    """Return `size` bytes of a file, starting at `offset`, or fewer if the file ends before that."""
    pieces: list[bytes] = []
    while size:
        piece = os.pread(fd, min(size, 1 << 26), offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)

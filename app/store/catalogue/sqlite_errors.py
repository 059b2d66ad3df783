"""Errors of SQLite as the errors of the disk that they stand for."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ERRNO: Final = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_IOERR_SHMSIZE: errno.ENOSPC,
}
"""The error numbers of the results that have one."""


def os_error(error: sqlite3.Error, path: Path | None = None) -> OSError:
    """An error of SQLite as the OSError that it stands for, EIO where it stands for none.

    SQLite does not say why it could not make a file: that the disk is full is seen at the database, `path`.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    number = ERRNO.get(code) or ERRNO.get(code & 0xFF, errno.EIO)
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN and path is not None and _is_full(path.parent):
        number = errno.ENOSPC
    return OSError(number, os.strerror(number), f"the catalogue: {error}")


def _is_full(folder: Path) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return not status.f_bavail or (status.f_files > 0 and not status.f_favail)


@contextmanager
def disk_errors(path: Path | None = None) -> Iterator[None]:
    """Turn what SQLite raises into OSError; `path` is that of the database where files are made beside it."""
    try:
        yield
    except sqlite3.Error as error:
        raise os_error(error, path) from error

"""Errors of SQLite as the errors of the disk that they stand for."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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


def os_error(error: sqlite3.Error) -> OSError:
    """An error of SQLite as the OSError that it stands for, EIO where it stands for none."""
    code = getattr(error, "sqlite_errorcode", 0)
    number = ERRNO.get(code) or ERRNO.get(code & 0xFF, errno.EIO)
    return OSError(number, os.strerror(number), f"the catalogue: {error}")


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what SQLite raises into OSError."""
    try:
        yield
    except sqlite3.Error as error:
        raise os_error(error) from error

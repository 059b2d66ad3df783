"""The `gathernd` command.

It is a separate package because `gathernd` imports httpx, which commands such as `gathernd serve` do not need.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

_UNWRITABLE: Final = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)
"""Errors of writing to standard output. An OSError with a file name concerns that file instead."""


def main() -> None:
    """Run the command line. Exits with a message if the extra `cli` is not installed or standard output fails."""
    try:
        from .command_line import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(
            f"gathernd: the commands need the package {error.name}: pip install './clients/python[cli]' in a checkout"
        )
    try:
        app()
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python does not flush the rest to it at exit
        sys.exit(f"gathernd: {error.strerror}")

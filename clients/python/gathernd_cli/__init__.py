"""The command `gathernd`.

A package beside `gathernd`, which imports httpx: a command that calls no service, such as `gathernd serve`, starts
without it.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

_UNWRITABLE: Final = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)
"""Errors of standard output: errors of files name them, and those of connections are told where they occur."""


def main() -> None:
    """Run the command line. Ends with a message where the extra `cli` is not installed, and where it cannot print."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what was not written is not tried again at the end
        sys.exit(f"gathernd: {error.strerror}")

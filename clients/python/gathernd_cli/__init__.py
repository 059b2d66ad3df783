"""The command `gathernd`.

A package beside `gathernd`, which imports httpx: a command that calls no service, such as `gathernd serve`, starts
without it.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line. Ends with a message where the extra `cli` is not installed, and where it cannot print."""
    try:
        from .command_line import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(f"gathernd: the commands need the package {error.name}: pip install 'gathernd[cli]'")
    try:
        app()
    except OSError as error:  # those of files and connections are told where they occur: this is mostly standard output
        place = f"{error.filename}: " if error.filename else ""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what was not written is not tried again at the end
        sys.exit(f"gathernd: {place}{error.strerror or error}")

"""The command `gathernd`.

A package beside `gathernd`, which imports httpx: a command that calls no service, such as `gathernd serve`, starts
without it.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends with a message where the extra `cli` is not installed."""
    try:
        from .command_line import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(f"gathernd: the commands need the package {error.name}: pip install 'gathernd[cli]'")
    app()

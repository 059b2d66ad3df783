"""Report the failure of a command: a line on standard error and an exit code."""

from __future__ import annotations

import typer


def failure(reason: str, code: int = 1) -> typer.Exit:
    """Print why the command fails, and return the exception to raise."""
    typer.echo(f"gathernd: {reason}", err=True)
    return typer.Exit(code)

"""How a command fails: a line on standard error, and an exit code."""

from __future__ import annotations

import typer


def failure(reason: str, code: int = 1) -> typer.Exit:
    """Print why the command fails. Returns what to raise to end it."""
    typer.echo(f"gathernd: {reason}", err=True)
    return typer.Exit(code)

"""`gathernd settings`: the table of settings, as docs/reference/settings.md has it."""

from __future__ import annotations

import typer

from app.settings import settings_table

app = typer.Typer(add_completion=False)


@app.command("settings")
def settings_command() -> None:
    """Print every setting as a Markdown table."""
    typer.echo(settings_table())

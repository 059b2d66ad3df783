"""`gathernd settings`: the tables of settings that docs/reference/settings.md shows."""

from __future__ import annotations

import typer

from app.settings import settings_tables

app = typer.Typer(add_completion=False)


@app.command("settings")
def settings_command() -> None:
    """Print every setting in Markdown tables."""
    typer.echo(settings_tables())

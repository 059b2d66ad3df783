"""`gathernd settings`: print every setting, in the Markdown tables of docs/reference/settings.md."""

from __future__ import annotations

import typer

from app.settings import settings_tables

app = typer.Typer(add_completion=False)


@app.command("settings")
def settings_command() -> None:
    """Print every setting in Markdown tables."""
    typer.echo(settings_tables())

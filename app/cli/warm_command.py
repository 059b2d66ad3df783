"""`gathernd warm`: compile kernels and parsers in advance, so that the first start is fast."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from app.cli.failure import failure
from app.cli.read_settings import read_settings
from app.warmup import warm

app = typer.Typer(add_completion=False)


@app.command("warm")
def warm_command(
    cache_dir: Annotated[
        Path | None, typer.Option(help="Folder for the compiled code. If omitted: GATHERND_CACHE_DIR.")
    ] = None,
) -> None:
    """Compile kernels and parsers into the cache folder, so that the next start is fast."""
    folder = cache_dir or read_settings().cache_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"{folder}: {os.strerror(error.errno or 0)}") from None
    rest = warm(folder, lambda name: typer.echo(f"ready: {name}"))
    if rest is not None:
        rest()
    if not any(folder.rglob("*.nbi")):  # Numba uses another folder if it cannot write to this one
        raise failure(f"{folder}: the compiled code could not be saved there")

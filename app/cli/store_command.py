"""`gathernd store backup|restore|check`: backups of the resident tensors, and what is damaged.

They work on the folder of the store, and on the machine that has it. A service may run on it meanwhile, but for
`restore`, which makes a new one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from app.cli.failure import failure
from app.cli.read_settings import read_settings
from app.store import StoreRefused
from app.store.maintenance.backup import DamagedVersions, back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from gathernd_cli.tables import Column, Field, human_bytes, human_count, print_fields, print_rows

app = typer.Typer(
    help="Back up the folder of resident tensors while a service uses it, restore it, and find damage.",
    no_args_is_help=True,
    add_completion=False,
)

StoreFolder = Annotated[
    Path | None,
    typer.Option("--store-dir", help="Folder of the store; default GATHERND_STORE_DIR.", show_default=False),
]


@contextmanager
def _told() -> Iterator[None]:
    """An error of the store or the disk ends the command with a message and exit code 1."""
    try:
        yield
    except StoreRefused as error:
        raise failure(str(error)) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise failure(f"{place}{os.strerror(error.errno) if error.errno else error}") from None


@app.command("backup")
def store_backup(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup: a new one, or one with an older backup.")],
    store_dir: StoreFolder = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out damaged versions and their aliases, and name them.")
    ] = False,
) -> None:
    """Make a backup, or bring one up to date. The service may go on meanwhile.

    Versions, aliases and numbers are those of one moment, each content is whole, and what is in the folder already is
    not copied again. Until the end the older backup is the one that is there.
    """
    with _told():
        try:
            done = back_up(store_dir or read_settings().store_dir, folder, skip_damaged=skip_damaged)
        except DamagedVersions as damaged:
            for reference, reason in damaged.reasons.items():
                typer.echo(f"gathernd: {reference}: {reason}", err=True)
            raise failure(
                f"{len(damaged.reasons)} versions are damaged, and no backup was made: upload the tensors again or "
                "remove them, or give --skip-damaged to leave them out"
            ) from None
    for name, reason in done.left_out.items():
        typer.echo(f"gathernd: left out {name}: {reason}", err=True)
    for name, reason in done.kept.items():
        typer.echo(f"gathernd: {name} is as in the backup before: {reason}", err=True)
    print_fields(
        [
            Field("versions", str(done.versions), human_count),
            Field("aliases", str(done.aliases), human_count),
            Field("copied", str(done.copied), human_count),
            Field("copied_bytes", str(done.copied_bytes), human_bytes),
        ]
    )


@app.command("restore")
def store_restore(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup.")],
    store_dir: StoreFolder = None,
) -> None:
    """Make a store of a backup, in a folder that has none. Every block is compared with its checksum.

    Names, versions, aliases, times and numbers stay; ETags are new, and Idempotency-Keys are gone.
    """
    with _told():
        done = restore(folder, store_dir or read_settings().store_dir)
    print_fields(
        [
            Field("versions", str(done.versions), human_count),
            Field("aliases", str(done.aliases), human_count),
            Field("bytes", str(done.size), human_bytes),
            Field("made", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(done.made // 10**9))),
        ]
    )


@app.command("check")
def store_check(store_dir: StoreFolder = None) -> None:
    """Find damage in a store, running or not, or in a backup, and say what to do. Changes nothing.

    Exit code 1 where there is damage; a note needs nobody to act.
    """
    with _told():
        found = list(check(store_dir or read_settings().store_dir))
    if found or not sys.stdout.isatty():
        print_rows(
            [Column("level"), Column("of"), Column("problem"), Column("what to do")],
            ([one.level, one.subject, one.problem, one.advice] for one in found),
        )
    else:
        typer.echo("No damage was found.")
    if any(one.level == "damage" for one in found):
        raise typer.Exit(1)

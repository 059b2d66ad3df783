"""`gathernd store backup|restore|check`: back up, restore and check the folder of resident tensors.

The commands run on the machine that has the folder. A service may use the store meanwhile, except with `restore`, which
creates a new store.
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
    help="Back up, restore and check the folder of resident tensors.",
    no_args_is_help=True,
    add_completion=False,
)

StoreFolder = Annotated[
    Path | None,
    typer.Option("--store-dir", help="Folder of the store. If omitted: GATHERND_STORE_DIR.", show_default=False),
]


@contextmanager
def _exit_on_failure() -> Iterator[None]:
    """End the command with a message and exit code 1 if the store or the disk fails."""
    try:
        yield
    except StoreRefused as error:
        raise failure(str(error)) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise failure(f"{place}{os.strerror(error.errno) if error.errno else error}") from None


@app.command("backup")
def store_backup(
    folder: Annotated[Path, typer.Argument(help="Folder for the backup: a new one, or one with an older backup.")],
    store_dir: StoreFolder = None,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Leave out damaged versions and their aliases, and print their names."),
    ] = False,
) -> None:
    """Make a backup, or bring an older one up to date. The service may run meanwhile.

    The backup shows versions and aliases as of one moment, each version complete.
    Files that the folder has already are not copied again.
    The older backup stays valid until the new one is complete.
    """
    with _exit_on_failure():
        try:
            done = back_up(store_dir or read_settings().store_dir, folder, skip_damaged=skip_damaged)
        except DamagedVersions as damaged:
            for reference, reason in damaged.reasons.items():
                typer.echo(f"gathernd: {reference}: {reason}", err=True)
            raise failure(
                f"{len(damaged.reasons)} versions are damaged, so no backup was made: upload the tensors again or "
                "remove them, or use --skip-damaged to leave them out"
            ) from None
    for name, reason in done.left_out.items():
        typer.echo(f"gathernd: skipped {name}: {reason}", err=True)
    for name, reason in done.kept.items():
        typer.echo(f"gathernd: kept {name} from the previous backup: {reason}", err=True)
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
    """Create a store from a backup, in a folder without a store. Every block is compared with its checksum.

    Names, version numbers, aliases and times are restored; ETags are new, and Idempotency-Keys are not restored.
    """
    with _exit_on_failure():
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
    """Find damage in a store or a backup, and print what to do about it. Changes nothing; a service may run meanwhile.

    The exit code is 1 if there is damage. A note needs no action.
    """
    with _exit_on_failure():
        found = list(check(store_dir or read_settings().store_dir))
    if found or not sys.stdout.isatty():
        print_rows(
            [Column("level"), Column("object"), Column("problem"), Column("what to do")],
            ([one.level, one.subject, one.problem, one.advice] for one in found),
        )
    else:
        typer.echo("No damage was found.")
    if any(one.level == "damage" for one in found):
        raise typer.Exit(1)

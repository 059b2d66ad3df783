"""`gathernd keys add|ls|rm`: manage the file of API keys, GATHERND_API_KEYS_FILE."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from app.cli.failure import failure
from app.cli.read_settings import read_settings
from app.security import api_keys
from gathernd_cli.tables import Column, print_rows

COLUMNS: Final = ("label", "scopes", "sha256", "added")
"""The columns of `ls`."""

app = typer.Typer(
    help="Manage the file of API keys, GATHERND_API_KEYS_FILE.", no_args_is_help=True, add_completion=False
)

KeysFile = Annotated[
    Path | None,
    typer.Option("--file", help="File of API keys. If omitted: GATHERND_API_KEYS_FILE.", show_default=False),
]


class KeyScope(Enum):
    """The values of `app.security.api_keys.Scope` as an enumeration, which Typer needs for an option's choices."""

    GATHER = "gather"
    TENSORS = "tensors"


@contextmanager
def _keys_file(given: Path | None) -> Iterator[Path]:
    """Yield the path of the keys file. An error in the file ends the command with a message and exit code 1."""
    path = given or read_settings().api_keys_file
    if path is None:
        raise failure("no keys file was given: set GATHERND_API_KEYS_FILE or give --file", 2)
    try:
        yield path
    except (api_keys.BadKeysFile, OSError) as error:
        raise failure(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from None


@app.command("add")
def keys_add(
    label: Annotated[str, typer.Argument(help="Name of the key: letters, digits and . _ @ -")],
    scope: Annotated[
        list[KeyScope] | None,
        typer.Option(
            help="What the key allows: use gather for using the service, and tensors for changing tensors. Repeat to "
            "allow both. If omitted: gather."
        ),
    ] = None,
    file: KeysFile = None,
) -> None:
    """Create a key and print it. It cannot be shown again: the file holds only its SHA-256.

    A running service accepts the key within a second.
    """
    with _keys_file(file) as path:
        scopes = [name for name in api_keys.SCOPES if KeyScope(name) in (scope or [KeyScope.GATHER])]
        text = api_keys.add(path, label, scopes)
    try:
        if sys.stdout is None:  # standard output was closed before the command started
            raise OSError(errno.EBADF, "standard output is closed")
        typer.echo(text)
    except OSError:
        with _keys_file(path):
            api_keys.remove(path, label)  # nobody has seen this key, so free its label
        raise


@app.command("ls")
def keys_ls(file: KeysFile = None) -> None:
    """List the keys: label, scopes, start of the SHA-256, time at which it was added (if the file has it)."""
    with _keys_file(file) as path:
        rows = list(api_keys.describe_keys(api_keys.read(path)))
    print_rows([Column(name) for name in COLUMNS], ([row[name] for name in COLUMNS] for row in rows))


@app.command("rm")
def keys_rm(label: Annotated[str, typer.Argument(help="Label of the key.")], file: KeysFile = None) -> None:
    """Remove a key. A running service refuses it within a second."""
    with _keys_file(file) as path:
        api_keys.remove(path, label)

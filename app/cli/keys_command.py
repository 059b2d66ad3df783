"""`gathernd keys add|ls|rm`: the file of API keys that GATHERND_API_KEYS_FILE names."""

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
"""What `ls` says of a key, in this order."""

app = typer.Typer(
    help="API keys: the file that GATHERND_API_KEYS_FILE names.", no_args_is_help=True, add_completion=False
)

KeysFile = Annotated[
    Path | None, typer.Option("--file", help="The keys file; default GATHERND_API_KEYS_FILE.", show_default=False)
]


class KeyScope(Enum):
    """The names of `app.security.api_keys.Scope` as an enumeration, which Typer turns into an option's choices."""

    GATHER = "gather"
    TENSORS = "tensors"


@contextmanager
def _keys_file(given: Path | None) -> Iterator[Path]:
    """The path of the keys file; an error of the file ends the command with a message and exit code 1."""
    path = given or read_settings().api_keys_file
    if path is None:
        raise failure("which keys file? Set GATHERND_API_KEYS_FILE or give --file", 2)
    try:
        yield path
    except (api_keys.BadKeysFile, OSError) as error:
        raise failure(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from None


@app.command("add")
def keys_add(
    label: Annotated[str, typer.Argument(help="What people call the key: letters, digits and . _ @ -")],
    scope: Annotated[
        list[KeyScope] | None,
        typer.Option(
            help="What the key may do, once for each; default gather. gather: use the service; tensors: change tensors."
        ),
    ] = None,
    file: KeysFile = None,
) -> None:
    """Make a key and print it, this once. Only its SHA-256 is kept. A running service takes it within a second."""
    with _keys_file(file) as path:
        scopes = [name for name in api_keys.SCOPES if KeyScope(name) in (scope or [KeyScope.GATHER])]
        text = api_keys.add(path, label, scopes)
    try:
        if sys.stdout is None:  # it was closed before the command began
            raise OSError(errno.EBADF, "standard output is closed")
        typer.echo(text)
    except OSError:
        with _keys_file(path):
            api_keys.remove(path, label)  # nobody knows this key, and its label is free again
        raise


@app.command("ls")
def keys_ls(file: KeysFile = None) -> None:
    """List the keys: label, scopes, start of the SHA-256, when it was added where the file says so."""
    with _keys_file(file) as path:
        rows = list(api_keys.described(api_keys.read(path)))
    print_rows([Column(name) for name in COLUMNS], ([row[name] for name in COLUMNS] for row in rows))


@app.command("rm")
def keys_rm(label: Annotated[str, typer.Argument(help="Label of the key.")], file: KeysFile = None) -> None:
    """Remove a key. A running service refuses it within a second."""
    with _keys_file(file) as path:
        api_keys.remove(path, label)

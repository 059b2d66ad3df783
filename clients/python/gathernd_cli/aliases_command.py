"""`gathernd aliases set|move|ls|show|rm`: aliases of a running service; each points to one version of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit
from .tables import Column, Field, print_fields, print_rows, short_etag

if TYPE_CHECKING:
    from gathernd import Alias

Name = Annotated[str, typer.Argument(help="Name of the alias.", show_default=False)]

COLUMNS: Final = (Column("alias"), Column("tensor"), Column("moved"), Column("etag", short_etag))
"""The columns of `ls`."""

app = typer.Typer(help="Aliases of a running service.", no_args_is_help=True, add_completion=False)


@app.command("set")
def set_(
    name: Name,
    tensor: Annotated[str, typer.Argument(help="Version to point to, such as NAME@7.", show_default=False)],
    if_match: Annotated[str | None, typer.Option(help="ETag that the alias must have; fail if it has changed.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Fail if the alias exists already.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Point an alias at a version, creating the alias if it does not exist. Prints its ETag.

    The change is atomic: every request sees either the old version or the new one.
    """
    with connect_or_exit(url, key, ca) as service:
        alias = service.put_alias(name, tensor, if_match=if_match, if_none_match="*" if new else None)
        typer.echo(alias.etag)


@app.command("move")
def move(
    targets: Annotated[
        list[str],
        typer.Argument(help="Each alias and the version to point it to.", metavar="ALIAS=NAME@7"),
    ],
    if_match: Annotated[
        list[str] | None,
        typer.Option(help="ETag that an alias must have, as ALIAS=ETAG. Repeat for several aliases."),
    ] = None,
    new: Annotated[
        list[str] | None, typer.Option(help="Alias that must not exist yet. Repeat for several aliases.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Create or move several aliases, all or none. Prints them in the format of `ls`.

    The change is atomic: every request sees either all the old versions or all the new ones.
    """
    moves, etags = _pairs(targets, "NAME@7"), _pairs(if_match or (), "ETAG")
    with connect_or_exit(url, key, ca) as service:
        try:
            moved = service.move_aliases(moves, if_match=etags, if_none_match=dict.fromkeys(new or (), "*"))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    print_rows(COLUMNS, map(_row, moved))


def _pairs(texts: Sequence[str], value: str) -> dict[str, str]:
    """Parse arguments of the form ALIAS=VALUE into a dict. Raises BadParameter."""
    found: dict[str, str] = {}
    for text in texts:
        alias, equals, rest = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} has no '=': write ALIAS={value}")
        if alias in found:
            raise typer.BadParameter(f"{alias!r} is given twice")
        found[alias] = rest
    return found


@app.command("ls")
def ls(url: Url = DEFAULT_URL, key: Key = None, ca: Ca = None) -> None:
    """List the aliases: name, version that it points to, time of the last move, ETag."""
    with connect_or_exit(url, key, ca) as service:
        print_rows(COLUMNS, map(_row, service.aliases()))


def _row(alias: Alias) -> tuple[str, str, str, str]:
    return alias.alias, alias.tensor, alias.modified, alias.etag


@app.command("show")
def show(name: Name, url: Url = DEFAULT_URL, key: Key = None, ca: Ca = None) -> None:
    """Print the details of an alias: one name and value on each line."""
    with connect_or_exit(url, key, ca) as service:
        alias = service.alias(name)
    print_fields(
        (
            Field("alias", alias.alias),
            Field("tensor", alias.tensor),
            Field("etag", alias.etag),
            Field("created", alias.created),
            Field("modified", alias.modified),
        )
    )


@app.command("rm")
def rm(
    name: Name,
    if_match: Annotated[str | None, typer.Option(help="ETag that the alias must have; fail if it has changed.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Remove an alias. The tensor is kept."""
    with connect_or_exit(url, key, ca) as service:
        service.delete_alias(name, if_match=if_match)

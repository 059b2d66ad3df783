"""What commands print: a table for people on a terminal; in a pipe a line for each row, with tabs and full values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import typer

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


class Column(NamedTuple):
    """A column: its title on a terminal, and how a value is shown there."""

    title: str
    shown: Callable[[str], str] = str
    right: bool = False


class Field(NamedTuple):
    """A named value of one thing, and how it is shown on a terminal."""

    name: str
    value: str
    shown: Callable[[str], str] = str


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of one value for each column. In a pipe there are no titles, and each row is printed as it comes."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    shown = [[column.shown(value) for column, value in zip(columns, row, strict=True)] for row in rows]
    _print_table(columns, shown, titles=True)


def print_fields(fields: Sequence[Field]) -> None:
    """Print a name and a value on each line."""
    if not sys.stdout.isatty():
        for field in fields:
            typer.echo(f"{field.name}\t{field.value}")
        return
    _print_table((Column(""), Column("")), [[field.name, field.shown(field.value)] for field in fields], titles=False)


def _print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, titles: bool) -> None:
    from rich.console import Console  # noqa: PLC0415  (a tenth of a second, and of no use in a pipe)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, show_header=titles, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(table)


def human_bytes(text: str) -> str:
    """A number of bytes in three digits and a unit of a power of 1000, such as 256 MB."""
    number, place = float(text), 0
    while number >= 999.5 and place < len(_UNITS) - 1:
        number, place = number / 1000, place + 1
    return f"{number:.3g} {_UNITS[place]}"


def human_count(text: str) -> str:
    """A whole number with commas."""
    return f"{float(text):,.0f}"


def short_etag(text: str) -> str:
    """The first characters of an ETag, enough for people to tell two apart."""
    return text.strip('"')[:12]

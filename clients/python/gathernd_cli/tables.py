"""Print rows and fields: on a terminal, as a table; in a pipe, as one line per row with full values separated by
tabs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import typer

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


class Column(NamedTuple):
    """A column: its title, how a value is formatted on a terminal, and whether it is aligned to the right."""

    title: str
    shown: Callable[[str], str] = str
    right: bool = False


class Field(NamedTuple):
    """A named value, and how it is formatted on a terminal."""

    name: str
    value: str
    shown: Callable[[str], str] = str


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows with one value per column.

    In a pipe, print no titles, and print each row as soon as it is produced.
    """
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
    from rich.console import Console  # noqa: PLC0415  (takes 0.1 s to import, and a pipe does not need it)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, show_header=titles, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(table)


def human_bytes(text: str) -> str:
    """Format a number of bytes with three digits and a decimal unit, such as 256 MB."""
    number, place = float(text), 0
    while number >= 999.5 and place < len(_UNITS) - 1:
        number, place = number / 1000, place + 1
    return f"{number:.3g} {_UNITS[place]}"


def human_count(text: str) -> str:
    """Format a whole number with commas."""
    return f"{float(text):,.0f}"


def short_etag(text: str) -> str:
    """Return the first 12 characters of an ETag, enough to tell two apart by eye."""
    return text.strip('"')[:12]

"""`gathernd tensors keys|rows`: the keys of a table, and its rows by key."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .call_options import FillValue, Output, called_wrongly, json_option, value_option
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit

if TYPE_CHECKING:
    from numpy.typing import NDArray

Table = Annotated[str, typer.Argument(help="Name of a table with keys, NAME@7, or an alias.", show_default=False)]


class Missing(Enum):
    """What comes for a key that the table lacks."""

    ERROR = "error"
    FILL = "fill"
    ROW = "row"


def keys(
    name: Table,
    output: Annotated[Path | None, typer.Option(help="npy file to write; without it each key is a line.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Download the keys of a table, in the order of its rows."""
    from .npy_files import print_or_save  # noqa: PLC0415  (imports NumPy, which a help does not need)

    with connect_or_exit(url, key, ca) as service:
        found = service.get_keys(name)
    if output is not None:
        print_or_save({"": found}, output)
        return
    for one in found.tolist():
        typer.echo(one)


def rows(
    name: Table,
    wanted: Annotated[list[str] | None, typer.Argument(help="Keys; a first one below 0 follows --.")] = None,
    keys_file: Annotated[Path | None, typer.Option("--keys", help="npy file of keys, in place of KEYs.")] = None,
    missing: Annotated[
        Missing, typer.Option(help="What comes for a key that the table lacks: an error, or a row.")
    ] = Missing.ERROR,
    missing_row: Annotated[
        str | None, typer.Option(help='With row, which one, as JSON: its position, 0, or its key, {"key": 7}.')
    ] = None,
    fill_value: FillValue = None,
    output: Output = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Print the rows of a table that have these keys, or write them into an npy file."""
    if bool(wanted) == (keys_file is not None):
        called_wrongly("give keys, or --keys with an npy file of them")
    options: dict[str, Any] = {"missing": missing.value} | value_option(fill_value)
    if missing_row is not None:
        options["missing_row"] = json_option("--missing-row", missing_row)

    from .npy_files import load, print_or_save  # noqa: PLC0415  (imports NumPy, which a help does not need)

    with connect_or_exit(url, key, ca) as service:
        if keys_file is not None:
            given = load(keys_file)
        else:
            info = service.metadata(name).keys
            given = typed(wanted or [], "string" if info is None else info.dtype)
        found = service.gather(name, keys=given, with_info=True, **options)
    print_or_save({"": found.array}, output)
    if found.missing:
        were = "key is" if found.missing == 1 else "keys are"
        typer.echo(f"gathernd: {found.missing} {were} not in the table", err=True)


def typed(texts: list[str], dtype: str) -> NDArray[Any]:
    """Keys of the type that the keys of a table have. Raises ValueError for a text that is no such integer."""
    import numpy as np  # noqa: PLC0415

    if dtype == "string":
        return np.array(texts, object)
    try:
        return np.array([int(text) for text in texts], dtype)
    except (ValueError, OverflowError):
        raise ValueError(f"the keys of this table are {dtype}; {', '.join(texts)} are not all") from None

"""`gathernd tensors keys|rows|upsert|remove`: a table's keys, and its rows by key or position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .call_options import (
    FillValue,
    IdempotencyKey,
    IfMatch,
    Missing,
    MissingMode,
    MissingRow,
    Output,
    Reduction,
    exit_with_usage_error,
    missing_options,
    print_missing,
    value_option,
)
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gathernd import Client

Table = Annotated[str, typer.Argument(help="Table with keys: NAME, NAME@7, or an alias.", show_default=False)]
AnyTable = Annotated[str, typer.Argument(help="Table: NAME, NAME@7, or an alias.", show_default=False)]


def keys(
    name: Table,
    output: Annotated[
        Path | None, typer.Option(help="npy file to write. If omitted, the keys are printed, one on each line.")
    ] = None,
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
    name: AnyTable,
    wanted: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys, or positions in a table without keys. Write -- before them if the first is negative."
        ),
    ] = None,
    keys_file: Annotated[Path | None, typer.Option("--keys", help="npy file with keys, instead of WANTED.")] = None,
    missing: MissingMode = Missing.ERROR,
    missing_row: MissingRow = None,
    fill_value: FillValue = None,
    output: Output = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Print the rows with these keys, or at these positions in a table without keys, or write them to an npy file."""
    if bool(wanted) == (keys_file is not None):
        exit_with_usage_error("give keys or positions, or --keys with an npy file of keys")
    options = missing_options(missing, missing_row) | value_option(fill_value)

    from .npy_files import load, print_or_save  # noqa: PLC0415  (imports NumPy, which a help does not need)

    with connect_or_exit(url, key, ca) as service:
        key_type = None if keys_file is not None else _key_type(service, name)
        if keys_file is None and key_type is None and missing is Missing.ERROR:
            found = service.gather(name, parse_keys(wanted or [], "int64", "positions"), with_info=True)
        else:
            given = load(keys_file) if keys_file is not None else parse_keys(wanted or [], key_type or "string")
            found = service.gather(name, keys=given, with_info=True, **options)
    print_or_save({"": found.array}, output)
    print_missing(found.missing)


def upsert(
    name: Table,
    keys_file: Annotated[Path, typer.Argument(help="npy file with the keys, of one dimension.", metavar="KEYS")],
    updates: Annotated[
        Path,
        typer.Argument(help="npy file with one row per key, in the table's type."),
    ],
    reduction: Annotated[
        Reduction, typer.Option(help="How to combine an update with the current row.")
    ] = Reduction.NONE,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Change the rows with these keys, and add a row for each new key. Prints the table's new ETag."""
    from .npy_files import load  # noqa: PLC0415  (imports NumPy, which a help does not need)

    with connect_or_exit(url, key, ca) as service:
        done = service.upsert(
            name,
            load(keys_file),
            load(updates),
            reduction.value,
            if_match=if_match,
            idempotency_key=idempotency_key,
        )
    typer.echo(done.etag)
    typer.echo(f"rows: {done.rows}, inserted: {done.inserted}", err=True)


def remove(
    name: Table,
    wanted: Annotated[
        list[str] | None, typer.Argument(help="Keys. Write -- before them if the first is negative.")
    ] = None,
    keys_file: Annotated[Path | None, typer.Option("--keys", help="npy file with keys, instead of WANTED.")] = None,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Remove the rows with these keys; the last rows move into the gaps. Prints the table's new ETag."""
    if bool(wanted) == (keys_file is not None):
        exit_with_usage_error("give keys, or --keys with an npy file of keys")
    with connect_or_exit(url, key, ca) as service:
        given = _requested_keys(service, name, wanted, keys_file)
        done = service.remove(name, given, if_match=if_match, idempotency_key=idempotency_key)
    typer.echo(done.etag)
    typer.echo(f"rows: {done.rows}, removed: {done.removed}, missing: {done.missing}", err=True)


def _requested_keys(service: Client, name: str, texts: list[str] | None, file: Path | None) -> NDArray[Any]:
    """Return the keys from a file, or those from the command line, converted to the type of the table's keys."""
    from .npy_files import load  # noqa: PLC0415  (imports NumPy, which a help does not need)

    if file is not None:
        return load(file)
    return parse_keys(texts or [], _key_type(service, name) or "string")


def _key_type(service: Client, name: str) -> str | None:
    """Return the type of a table's keys, or None if it has no keys."""
    info = service.metadata(name).keys
    return None if info is None else info.dtype


def parse_keys(texts: list[str], dtype: str, what: str = "keys") -> NDArray[Any]:
    """Convert texts to keys or positions of type `dtype`. Raises ValueError if one does not fit the type."""
    import numpy as np  # noqa: PLC0415

    if dtype == "string":
        return np.array(texts, object)
    try:
        return np.array([int(text) for text in texts], dtype)
    except (ValueError, OverflowError):
        raise ValueError(f"the {what} of this table must be {dtype}; got {', '.join(texts)}") from None

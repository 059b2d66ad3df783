"""Options shared by several commands: out-of-bounds indices, missing keys, reductions, conditions and output files."""

from __future__ import annotations

import json
import math
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


class OutOfBounds(Enum):
    """How to treat an index that is out of bounds."""

    ERROR = "error"
    CLIP = "clip"
    WRAP = "wrap"
    FILL = "fill"


FillValue = Annotated[
    str | None,
    typer.Option(
        help='The value that mode fill uses (for indices out of bounds and missing keys), as JSON: -1, true, "NaN". '
        "If omitted: 0, false or an empty string."
    ),
]


class OutputDType(Enum):
    """An element type that can be requested for a float output."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


AskedDType = Annotated[
    OutputDType | None,
    typer.Option(
        "--output-dtype",
        help="Element type of the output, if the data has a float type. If omitted: the data's type.",
    ),
]
Output = Annotated[Path | None, typer.Option(help="npy file to write. If omitted, the output is printed.")]


class Missing(Enum):
    """How to treat a key that the table does not have."""

    ERROR = "error"
    FILL = "fill"
    ROW = "row"


MissingMode = Annotated[
    Missing,
    typer.Option(
        help="How to treat a key that the table does not have: error reports it, fill returns a row of --fill-value, "
        "and row returns the row given in --missing-row."
    ),
]
MissingRow = Annotated[
    str | None,
    typer.Option(
        help="With --missing row: the row to return for missing keys, as JSON: by position, such as 0, or by key, such "
        'as {"key": 7}.'
    ),
]


class Reduction(Enum):
    """How to combine an update with the current value."""

    NONE = "none"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


IfMatch = Annotated[str | None, typer.Option(help="ETag that the tensor must have; fail if it has changed.")]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        help="Idempotency-Key of the change: if the change is repeated with the same key, it is not carried out again. "
        "If omitted: a new key."
    ),
]


def exit_with_usage_error(message: str) -> NoReturn:
    """Report wrong usage: exit with code 2 and a message on stderr."""
    typer.echo(f"gathernd: {message}", err=True)
    raise typer.Exit(2)


def gather_options(
    mode: OutOfBounds | None, fill_value: str | None, output_dtype: OutputDType | None
) -> dict[str, Any]:
    """Return the keyword arguments for the client's gathers. Exits with code 2 if `fill_value` is not JSON."""
    options: dict[str, Any] = {} if mode is None else {"out_of_bounds": mode.value}
    if output_dtype is not None:
        options["output_dtype"] = output_dtype.value
    return options | value_option(fill_value)


def value_option(fill_value: str | None) -> dict[str, Any]:
    """Return `fill_value` as a keyword argument, if it is given. Exits with code 2 if it is not JSON."""
    return {} if fill_value is None else {"fill_value": json_option("--fill-value", fill_value)}


def missing_options(missing: Missing, missing_row: str | None) -> dict[str, Any]:
    """Return the keyword arguments for missing keys. Exits with code 2 if `missing_row` is not JSON."""
    row = {} if missing_row is None else {"missing_row": json_option("--missing-row", missing_row)}
    return {"missing": missing.value} | row


def json_option(name: str, text: str) -> Any:
    """Parse the JSON value of the `name` option. Exits with code 2 if it is not JSON."""
    try:
        return json.loads(text, parse_int=_integer, parse_float=_finite)
    except ValueError:
        exit_with_usage_error(f"{name} {text!r} is not JSON; a string has quotes: '\"a\"'")


def _integer(text: str) -> int | float:
    """Parse an integer; -0 becomes a float, which keeps its sign."""
    return -0.0 if text == "-0" else int(text)


def _finite(text: str) -> float:
    """Parse a number that has a fraction or an exponent. Exits with code 2 if float64 cannot hold it."""
    number = float(text)
    if math.isinf(number):
        exit_with_usage_error(f"--fill-value {text} is larger than any float64")
    return number


def print_replaced(count: int | None) -> None:
    """Print on stderr how many components of the indices were replaced, if any."""
    if count:
        were = "component of the indices was" if count == 1 else "components of the indices were"
        typer.echo(f"gathernd: {count} {were} out of bounds and replaced", err=True)


def print_missing(count: int | None) -> None:
    """Print on stderr how many keys were missing from the tables, if any."""
    if count:
        were = "key is" if count == 1 else "keys are"
        typer.echo(f"gathernd: {count} {were} not in the table", err=True)

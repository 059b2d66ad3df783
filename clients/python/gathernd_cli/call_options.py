"""Options that the commands of calls share: what becomes of indices out of bounds, and where the output goes."""

from __future__ import annotations

import json
import math
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


class OutOfBounds(Enum):
    """What becomes of an index that is out of bounds."""

    ERROR = "error"
    CLIP = "clip"
    WRAP = "wrap"
    FILL = "fill"


FillValue = Annotated[
    str | None, typer.Option(help='With fill, what slices are filled with, as JSON: -1, true, "NaN".')
]


class OutputDType(Enum):
    """A type that an output of floats can be asked for in."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


AskedDType = Annotated[
    OutputDType | None, typer.Option("--output-dtype", help="The type of an output of floats; the data's if left out.")
]
Output = Annotated[Path | None, typer.Option(help="npy file to write; without it the output is printed.")]


class Missing(Enum):
    """What comes for a key that the table lacks."""

    ERROR = "error"
    FILL = "fill"
    ROW = "row"


MissingMode = Annotated[Missing, typer.Option(help="What comes for a key that the table lacks: an error, or a row.")]
MissingRow = Annotated[
    str | None,
    typer.Option(help='With --missing row, which one, as JSON: its position, 0, or its key, {"key": 7}.'),
]


class Reduction(Enum):
    """How an update meets the old value."""

    NONE = "none"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


IfMatch = Annotated[str | None, typer.Option(help="ETag that the tensor must have now.")]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="Given again with the same key, it is carried out once; default a new key.")
]


def called_wrongly(message: str) -> NoReturn:
    """End the command with exit code 2 and a message on stderr."""
    typer.echo(f"gathernd: {message}", err=True)
    raise typer.Exit(2)


def gather_options(
    mode: OutOfBounds | None, fill_value: str | None, output_dtype: OutputDType | None
) -> dict[str, Any]:
    """The options of the client's method. Ends with 2 if the value is no JSON."""
    options: dict[str, Any] = {} if mode is None else {"out_of_bounds": mode.value}
    if output_dtype is not None:
        options["output_dtype"] = output_dtype.value
    return options | value_option(fill_value)


def value_option(fill_value: str | None) -> dict[str, Any]:
    """The option `fill_value` of the client's method, if it is given. Ends with 2 if it is no JSON."""
    return {} if fill_value is None else {"fill_value": json_option("--fill-value", fill_value)}


def missing_options(missing: Missing, missing_row: str | None) -> dict[str, Any]:
    """The options of the client's method that belong to keys. Ends with 2 if the row is no JSON."""
    row = {} if missing_row is None else {"missing_row": json_option("--missing-row", missing_row)}
    return {"missing": missing.value} | row


def json_option(name: str, text: str) -> Any:
    """The value of an option that is JSON. Ends with 2 if it is none."""
    try:
        return json.loads(text, parse_int=_integer, parse_float=_finite)
    except ValueError:
        called_wrongly(f"{name} {text!r} is not JSON; a string has quotes: '\"a\"'")


def _integer(text: str) -> int | float:
    """An integer, but for -0, of which int() would lose the sign."""
    return -0.0 if text == "-0" else int(text)


def _finite(text: str) -> float:
    """A number with a fraction or an exponent. Ends with 2 where float() would make it infinite."""
    number = float(text)
    if math.isinf(number):
        called_wrongly(f"--fill-value {text} is larger than any float64")
    return number


def tell_replaced(count: int | None) -> None:
    """Say on stderr how many components of the indices were replaced, where some were."""
    if count:
        were = "component of the indices was" if count == 1 else "components of the indices were"
        typer.echo(f"gathernd: {count} {were} out of bounds and replaced", err=True)


def tell_missing(count: int | None) -> None:
    """Say on stderr how many keys were not in their tables, where some were."""
    if count:
        were = "key is" if count == 1 else "keys are"
        typer.echo(f"gathernd: {count} {were} not in the table", err=True)

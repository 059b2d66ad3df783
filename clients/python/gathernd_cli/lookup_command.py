"""`gathernd lookup`: look up rows of many resident tensors in one request, single or pooled, into npy files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from .call_options import (
    AskedDType,
    FillValue,
    Missing,
    MissingMode,
    MissingRow,
    OutOfBounds,
    exit_with_usage_error,
    gather_options,
    missing_options,
    print_missing,
    print_replaced,
)
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit

FEATURE: Final = "TENSOR=INDICES[,OFFSETS[,WEIGHTS]]"

app = typer.Typer(add_completion=False)


class Pooling(Enum):
    """How to combine the rows of a bag into one row."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


class _Files(NamedTuple):
    """A feature as specified on the command line: a resident tensor and npy files."""

    tensor: str
    indices: Path
    offsets: Path | None = None
    weights: Path | None = None


def _files(text: str) -> _Files:
    """Parse `TENSOR=indices.npy,offsets.npy,weights.npy`. Exits with code 2 if the text is malformed."""
    tensor, equals, rest = text.partition("=")
    names = rest.split(",")
    if not tensor or not equals or not all(names) or len(names) > 3:
        exit_with_usage_error(
            f"{text!r} is not of the form {FEATURE}, such as items=rows.npy or items=rows.npy,bags.npy"
        )
    return _Files(tensor, *map(Path, names))


@app.command("lookup")
def lookup(
    features: Annotated[
        list[str],
        typer.Argument(
            help="Resident tensors, each with an npy file of the positions of the rows to look up. For bags, add a "
            "file of the positions in INDICES at which each bag begins, and optionally a file of one weight per index.",
            metavar=f"{FEATURE}...",
        ),
    ],
    pooling: Annotated[
        Pooling | None,
        typer.Option(help="How to combine the rows of a bag into one row. If omitted: sum.", show_default=False),
    ] = None,
    include_last_offset: Annotated[
        bool,
        typer.Option(
            "--include-last-offset",
            help="OFFSETS has one more entry, the end of the last bag, which is the number of indices.",
        ),
    ] = False,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="INDICES holds keys of rows in place of positions, in every feature.")
    ] = False,
    missing: MissingMode = Missing.ERROR,
    missing_row: MissingRow = None,
    concat: Annotated[bool, typer.Option(help="Join the outputs on axis 1, or keep one for each feature.")] = True,
    out_of_bounds: Annotated[
        OutOfBounds | None,
        typer.Option(help="How to treat an index that is out of bounds. If omitted: error."),
    ] = None,
    fill_value: FillValue = None,
    output_dtype: AskedDType = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="npy file to write. With --no-concat there is one file for each feature: OUT.0.npy, OUT.1.npy and so "
            "on for OUT.npy. Without --output the outputs are printed."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Look up rows of many resident tensors in one request to a running service, from npy files into npy files."""
    given = [_files(text) for text in features]
    if pooling is not None and all(one.offsets is None for one in given):
        exit_with_usage_error("--pooling belongs to features with offsets: TENSOR=INDICES,OFFSETS")
    if include_last_offset and all(one.offsets is None for one in given):
        exit_with_usage_error("--include-last-offset belongs to features with offsets: TENSOR=INDICES,OFFSETS")
    if not by_key and (missing is not Missing.ERROR or missing_row is not None):
        exit_with_usage_error("--missing and --missing-row belong to --by-key")
    options = gather_options(out_of_bounds, fill_value, output_dtype)
    of_keys = missing_options(missing, missing_row) if by_key else {}

    from .npy_files import load, print_or_save  # noqa: PLC0415  (not needed for the help)

    with connect_or_exit(url, key, ca) as service:
        from gathernd import Feature  # noqa: PLC0415

        def loaded(path: Path | None) -> Any:
            return None if path is None else load(path)

        found = service.lookup(
            [
                Feature(
                    one.tensor,
                    None if by_key else load(one.indices),
                    loaded(one.offsets),
                    weights=loaded(one.weights),
                    pooling=None if one.offsets is None else (pooling or Pooling.SUM).value,
                    include_last_offset=include_last_offset and one.offsets is not None,
                    keys=load(one.indices) if by_key else None,
                    **of_keys,
                )
                for one in given
            ],
            concat=concat,
            with_info=True,
            **options,
        )
        rows = found.output
        print_or_save({"": rows} if concat else {str(number): one for number, one in enumerate(rows)}, output)
        print_replaced(found.replaced)
        print_missing(found.missing)

"""`gathernd call`: run a gather or a scatter on a running service, from npy files into an npy file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .call_options import (
    AskedDType,
    FillValue,
    Missing,
    MissingMode,
    MissingRow,
    OutOfBounds,
    Output,
    Reduction,
    exit_with_usage_error,
    gather_options,
    missing_options,
    print_missing,
    print_replaced,
)
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit

RESIDENT: Final = "tensor:"
_MAY_BE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Operator(Enum):
    """The operators that `gathernd call` can run."""

    GATHERND = "gathernd"
    GATHER = "gather"
    GATHER_ELEMENTS = "gather_elements"
    GATHER_BLOCK_QUANTIZED = "gather_block_quantized"
    SCATTERND = "scatternd"
    SCATTER_ELEMENTS = "scatter_elements"


SCATTERS: Final = (Operator.SCATTERND, Operator.SCATTER_ELEMENTS)
PARAMETERS: Final[Mapping[Operator, str]] = {
    Operator.GATHERND: "batch_dims",
    Operator.GATHER: "axis",
    Operator.GATHER_ELEMENTS: "axis",
    Operator.SCATTER_ELEMENTS: "axis",
}
"""The name of each operator's parameter, if it has one."""

app = typer.Typer(add_completion=False)


def _operators_with(parameter: str) -> str:
    """Return the names of the operators with this parameter, for a message."""
    return " or ".join(op.value for op, name in PARAMETERS.items() if name == parameter)


@app.command("call")
def call(
    data: Annotated[
        str,
        typer.Argument(
            help="npy file with the data, or name of a resident tensor. A file takes precedence; tensor:NAME always "
            "means the tensor.",
            metavar="DATA",
        ),
    ],
    indices: Annotated[
        Path | None, typer.Argument(help="npy file with the indices. Leave it out if you give --keys.")
    ] = None,
    op: Annotated[Operator, typer.Option(help="Operator to run.")] = Operator.GATHERND,
    batch_dims: Annotated[
        int,
        typer.Option(
            help="Number of leading dimensions that are batches (gathernd; gather in the dialect openvino-8)."
        ),
    ] = 0,
    axis: Annotated[
        int,
        typer.Option(
            help=(
                "Axis of data to index; a negative axis counts from the end (gather, gather_elements, "
                "scatter_elements)."
            )
        ),
    ] = 0,
    keys: Annotated[
        Path | None,
        typer.Option(help="npy file with row keys, instead of INDICES (gather from a table with keys)."),
    ] = None,
    missing: MissingMode = Missing.ERROR,
    missing_row: MissingRow = None,
    updates: Annotated[Path | None, typer.Option(help="npy file with the updates of a scatter.")] = None,
    scales: Annotated[
        str | None,
        typer.Option(help="Scales of gather_block_quantized: a file or resident tensor, like DATA.", metavar="DATA"),
    ] = None,
    zero_points: Annotated[
        str | None,
        typer.Option(
            help="Zero points of gather_block_quantized: a file or resident tensor, like DATA.", metavar="DATA"
        ),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="Bits of a value of gather_block_quantized: 4 or 8. If omitted: 4.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Number of values in a block of gather_block_quantized. If omitted: 128."),
    ] = None,
    reduction: Annotated[
        Reduction, typer.Option(help="How to combine an update with the current value (scatters).")
    ] = Reduction.NONE,
    dialect: Annotated[
        str | None,
        typer.Option(
            help="Specification and version whose rules apply. If omitted: onnx-18 for scatters, otherwise onnx-13."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Device to run on: auto, cpu or gpu.")] = "auto",
    out_of_bounds: Annotated[
        OutOfBounds | None,
        typer.Option(
            help="How to treat an index that is out of bounds (gathers). If omitted: fill for gather in the dialect "
            "openvino-8, otherwise error."
        ),
    ] = None,
    fill_value: FillValue = None,
    output_dtype: AskedDType = None,
    output: Output = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Run a gather, or a scatter into a copy, on a running service, from npy files into an npy file."""
    if (indices is None) == (keys is None):
        exit_with_usage_error("give exactly one of INDICES and --keys")
    quantized = {"scales": scales, "zero_points": zero_points, "bits": bits, "block_size": block_size}
    quantized = {name: value for name, value in quantized.items() if value is not None}
    if op is Operator.GATHER_BLOCK_QUANTIZED:
        if scales is None or dialect is not None or device == "gpu":
            exit_with_usage_error(f"--op {op.value} needs --scales, takes no --dialect, and runs on the CPU")
    elif quantized:
        exit_with_usage_error(f"--{min(quantized).replace('_', '-')} belongs to --op gather_block_quantized")
    parameters = {"batch_dims": batch_dims, "axis": axis}
    own = [parameters.pop(PARAMETERS[op])] if op in PARAMETERS else []
    options: dict[str, Any] = {} if dialect is None else {"dialect": dialect}
    if op in SCATTERS:
        if updates is None or device == "gpu":
            exit_with_usage_error(f"--op {op.value} needs --updates and runs on the CPU")
        if any(option is not None for option in (out_of_bounds, fill_value, output_dtype)):
            exit_with_usage_error("--out-of-bounds, --fill-value and --output-dtype belong to gathers")
        options["reduction"] = reduction.value
    elif updates is not None or reduction is not Reduction.NONE:
        exit_with_usage_error("--updates and --reduction belong to --op scatternd or scatter_elements")
    else:
        options |= gather_options(out_of_bounds, fill_value, output_dtype)
        options |= quantized if op is Operator.GATHER_BLOCK_QUANTIZED else {"device": device}
    if keys is not None:
        if op is not Operator.GATHER:
            exit_with_usage_error("--keys belongs to --op gather")
        if axis:
            exit_with_usage_error("--keys selects rows, which are along axis 0: leave out --axis")
        options |= missing_options(missing, missing_row)
    elif missing is not Missing.ERROR or missing_row is not None:
        exit_with_usage_error("--missing and --missing-row belong to --keys")
    if op is Operator.GATHER and dialect == "openvino-8":
        options["batch_dims"] = parameters.pop("batch_dims")
    if any(parameters.values()):
        owners = (
            f"--{name.replace('_', '-')} belongs to --op {_operators_with(name)}" for name in ("batch_dims", "axis")
        )
        exit_with_usage_error(", ".join(owners))

    from .npy_files import load, print_or_save  # noqa: PLC0415  (not needed for the help)

    with connect_or_exit(url, key, ca) as service:
        from gathernd.errors import TensorNotFound  # noqa: PLC0415

        def source_of(text: str) -> Any:
            path, name = Path(text), text.removeprefix(RESIDENT)
            return load(path) if name == text and (path.exists() or not _MAY_BE_NAME.fullmatch(text)) else name

        options |= {name: source_of(options[name]) for name in ("scales", "zero_points") if name in options}
        if keys is not None:
            options["keys"] = load(keys)
        method = getattr(service, op.value)  # the client's methods are named after the operators
        arrays = [load(path) for path in (indices, updates) if path is not None]
        own = own if arrays else []  # keys always select along axis 0
        try:
            found = method(source_of(data), *arrays, *own, with_info=True, **options)
        except TensorNotFound:
            if data.startswith(RESIDENT) or quantized:
                raise
            typer.echo(f"gathernd: {data} is neither a file nor a resident tensor (tensor_not_found)", err=True)
            raise typer.Exit(1) from None
        print_or_save({"": found.array}, output)
        print_replaced(found.replaced)
        print_missing(found.missing)

"""`gathernd call`: a gather or a scatter by a running service, from npy files into an npy file."""

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
    called_wrongly,
    gather_options,
    missing_options,
    tell_missing,
    tell_replaced,
)
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit

RESIDENT: Final = "tensor:"
_MAY_BE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Operator(Enum):
    """The operators that a call may ask for."""

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


def _taken_by(parameter: str) -> str:
    """The operators with this parameter."""
    return " or ".join(op.value for op, name in PARAMETERS.items() if name == parameter)


@app.command("call")
def call(
    data: Annotated[
        str,
        typer.Argument(
            help="npy file of the data, or the name of a resident tensor; where there are both it is the file, and "
            "tensor:NAME is the tensor.",
            metavar="DATA",
        ),
    ],
    indices: Annotated[Path | None, typer.Argument(help="npy file of the indices; none with --keys.")] = None,
    op: Annotated[Operator, typer.Option(help="Which operator.")] = Operator.GATHERND,
    batch_dims: Annotated[
        int, typer.Option(help="Leading dimensions that are batches (gathernd; gather in the dialect openvino-8).")
    ] = 0,
    axis: Annotated[int, typer.Option(help="Axis to gather or scatter on (all but gathernd and scatternd).")] = 0,
    keys: Annotated[
        Path | None, typer.Option(help="npy file of keys of rows, in place of INDICES (gather, of a table with keys).")
    ] = None,
    missing: MissingMode = Missing.ERROR,
    missing_row: MissingRow = None,
    updates: Annotated[Path | None, typer.Option(help="npy file of a scatter's updates.")] = None,
    scales: Annotated[
        str | None,
        typer.Option(help="Scales of gather_block_quantized, as DATA is given.", metavar="DATA"),
    ] = None,
    zero_points: Annotated[
        str | None,
        typer.Option(help="Zero points of gather_block_quantized, as DATA is given.", metavar="DATA"),
    ] = None,
    bits: Annotated[int | None, typer.Option(help="Bits of a value of gather_block_quantized, 4 or 8.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Values of a block of gather_block_quantized.")] = None,
    reduction: Annotated[Reduction, typer.Option(help="What a scatter does with an update.")] = Reduction.NONE,
    dialect: Annotated[
        str | None, typer.Option(help="Whose rules hold; onnx-18 of a scatter if left out, else onnx-13.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    out_of_bounds: Annotated[
        OutOfBounds | None,
        typer.Option(help="What becomes of an index out of bounds (gathers); the dialect's rule if left out."),
    ] = None,
    fill_value: FillValue = None,
    output_dtype: AskedDType = None,
    output: Output = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Gather, or scatter into a copy, by a running service: npy files in, an npy file out."""
    if (indices is None) == (keys is None):
        called_wrongly("give INDICES, or --keys")
    quantized = {"scales": scales, "zero_points": zero_points, "bits": bits, "block_size": block_size}
    quantized = {name: value for name, value in quantized.items() if value is not None}
    if op is Operator.GATHER_BLOCK_QUANTIZED:
        if scales is None or dialect is not None or device == "gpu":
            called_wrongly(f"--op {op.value} needs --scales, has one dialect, and runs on the CPU")
    elif quantized:
        called_wrongly(f"--{min(quantized).replace('_', '-')} belongs to --op gather_block_quantized")
    parameters = {"batch_dims": batch_dims, "axis": axis}
    own = [parameters.pop(PARAMETERS[op])] if op in PARAMETERS else []
    options: dict[str, Any] = {} if dialect is None else {"dialect": dialect}
    if op in SCATTERS:
        if updates is None or device == "gpu":
            called_wrongly(f"--op {op.value} needs --updates, and runs on the CPU")
        if any(option is not None for option in (out_of_bounds, fill_value, output_dtype)):
            called_wrongly("--out-of-bounds, --fill-value and --output-dtype belong to gathers")
        options["reduction"] = reduction.value
    elif updates is not None or reduction is not Reduction.NONE:
        called_wrongly("--updates and --reduction belong to --op scatternd or scatter_elements")
    else:
        options |= gather_options(out_of_bounds, fill_value, output_dtype)
        options |= quantized if op is Operator.GATHER_BLOCK_QUANTIZED else {"device": device}
    if keys is not None:
        if op is not Operator.GATHER:
            called_wrongly("--keys belongs to --op gather")
        options |= missing_options(missing, missing_row)
    elif missing is not Missing.ERROR or missing_row is not None:
        called_wrongly("--missing and --missing-row belong to --keys")
    if op is Operator.GATHER and dialect == "openvino-8":
        options["batch_dims"] = parameters.pop("batch_dims")
    if any(parameters.values()):
        owners = (f"--{name.replace('_', '-')} belongs to --op {_taken_by(name)}" for name in ("batch_dims", "axis"))
        called_wrongly(", ".join(owners))

    from .npy_files import load, print_or_save  # noqa: PLC0415  (not needed for the help)

    with connect_or_exit(url, key, ca) as service:
        from gathernd.errors import TensorNotFound  # noqa: PLC0415

        def source_of(text: str) -> Any:
            path, name = Path(text), text.removeprefix(RESIDENT)
            return load(path) if name == text and (path.exists() or not _MAY_BE_NAME.fullmatch(text)) else name

        options |= {name: source_of(options[name]) for name in ("scales", "zero_points") if name in options}
        if keys is not None:
            options["keys"] = load(keys)
        method = getattr(service, op.value)  # the client's method of the operator's name
        arrays = [load(path) for path in (indices, updates) if path is not None]
        own = own if arrays else []  # without indices the axis is that of rows
        try:
            found = method(source_of(data), *arrays, *own, with_info=True, **options)
        except TensorNotFound:
            if data.startswith(RESIDENT) or quantized:
                raise
            typer.echo(f"gathernd: {data} is neither a file nor a resident tensor (tensor_not_found)", err=True)
            raise typer.Exit(1) from None
        print_or_save({"": found.array}, output)
        tell_replaced(found.replaced)
        tell_missing(found.missing)

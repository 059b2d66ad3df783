"""`gathernd call`: a gather or a scatter by a running service, from npy files into an npy file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .call_options import AskedDType, FillValue, OutOfBounds, Output, called_wrongly, gather_options, tell_replaced
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit

RESIDENT: Final = "tensor:"
_MAY_BE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class Operator(Enum):
    """The operators that a call may ask for."""

    GATHERND = "gathernd"
    GATHER = "gather"
    GATHER_ELEMENTS = "gather_elements"
    SCATTERND = "scatternd"
    SCATTER_ELEMENTS = "scatter_elements"


class Reduction(Enum):
    """What a scatter does with an update."""

    NONE = "none"
    ADD = "add"
    MUL = "mul"
    MIN = "min"
    MAX = "max"


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
    indices: Annotated[Path, typer.Argument(help="npy file of the indices.")],
    op: Annotated[Operator, typer.Option(help="Which operator.")] = Operator.GATHERND,
    batch_dims: Annotated[
        int, typer.Option(help="Leading dimensions that are batches (gathernd; gather in the dialect openvino-8).")
    ] = 0,
    axis: Annotated[int, typer.Option(help="Axis to gather or scatter on (all but gathernd and scatternd).")] = 0,
    updates: Annotated[Path | None, typer.Option(help="npy file of a scatter's updates.")] = None,
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
        options |= {"device": device} | gather_options(out_of_bounds, fill_value, output_dtype)
    if op is Operator.GATHER and dialect == "openvino-8":
        options["batch_dims"] = parameters.pop("batch_dims")
    if any(parameters.values()):
        owners = (f"--{name.replace('_', '-')} belongs to --op {_taken_by(name)}" for name in ("batch_dims", "axis"))
        called_wrongly(", ".join(owners))

    from .npy_files import load, print_or_save  # noqa: PLC0415  (not needed for the help)

    with connect_or_exit(url, key, ca) as service:
        from gathernd.errors import TensorNotFound  # noqa: PLC0415

        path, name = Path(data), data.removeprefix(RESIDENT)
        is_file = name == data and (path.exists() or not _MAY_BE_NAME.fullmatch(data))
        source: Any = load(path) if is_file else name
        method = getattr(service, op.value)  # the client's method of the operator's name
        arrays = [load(path) for path in (indices, updates) if path is not None]
        try:
            found = method(source, *arrays, *own, with_info=True, **options)
        except TensorNotFound:
            if name != data:
                raise
            typer.echo(f"gathernd: {data} is neither a file nor a resident tensor (tensor_not_found)", err=True)
            raise typer.Exit(1) from None
        print_or_save({"": found.array}, output)
        tell_replaced(found.replaced)

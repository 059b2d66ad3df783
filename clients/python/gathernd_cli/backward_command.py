"""`gathernd backward`: compute the gradient of a gather on a running service, from npy files into npy files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .call_options import exit_with_usage_error
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit


class Gathered(Enum):
    """The operators that have a gradient."""

    GATHERND = "gathernd"
    GATHER = "gather"


_BOTH: Final = "openvino-8"
"""The dialect in which gather has both an axis and batch_dims."""

app = typer.Typer(add_completion=False)


def _shape(text: str) -> list[int]:
    """Parse a shape such as 200000,64; an empty text is the shape of a scalar. Exits with code 2 if it is malformed."""
    try:
        return [int(size) for size in text.split(",")] if text else []
    except ValueError:
        exit_with_usage_error(f"--data-shape {text!r} is not a shape, such as 200000,64")


@app.command("backward")
def backward(
    indices: Annotated[Path, typer.Argument(help="npy file with the gather's indices.")],
    grad_output: Annotated[
        Path, typer.Argument(help="npy file with the derivative of the loss with respect to the gather's output.")
    ],
    op: Annotated[Gathered, typer.Option(help="The gather to differentiate.")] = Gathered.GATHERND,
    data_shape: Annotated[
        str | None,
        typer.Option(help="Shape of the gather's data, such as 200000,64. Give exactly one of this and --tensor."),
    ] = None,
    tensor: Annotated[
        str | None, typer.Option(help="Name of a resident tensor with the shape of the gather's data.")
    ] = None,
    batch_dims: Annotated[
        int,
        typer.Option(
            help="Number of leading dimensions that are batches (gathernd; gather in the dialect openvino-8)."
        ),
    ] = 0,
    axis: Annotated[int, typer.Option(help="Axis of data that was indexed (gather).")] = 0,
    lda_coeff: Annotated[float, typer.Option(help="Factor for the sum.")] = 1.0,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Return only the slices that an index addresses: their indices and values.")
    ] = False,
    dialect: Annotated[str, typer.Option(help="Specification and version whose rules apply.")] = "onnx-13",
    output: Annotated[
        Path | None,
        typer.Option(
            help="npy file to write. With --sparse, two files are written: OUT.indices.npy and OUT.values.npy for "
            "OUT.npy. Without --output the gradient is printed."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Compute the gradient of a gather with respect to its data on a running service, from npy files into npy files."""
    if (data_shape is None) == (tensor is None):
        exit_with_usage_error("give exactly one of --data-shape (the shape of the gather's data) and --tensor")
    if (batch_dims and dialect != _BOTH) if op is Gathered.GATHER else axis:
        exit_with_usage_error(f"--batch-dims belongs to --op gathernd or --dialect {_BOTH}, --axis to --op gather")
    shape = None if data_shape is None else _shape(data_shape)

    from .npy_files import load, print_or_save  # noqa: PLC0415  (not needed for the help)

    with connect_or_exit(url, key, ca) as service:
        options: dict[str, Any] = {"data_shape": shape, "tensor": tensor, "lda_coeff": lda_coeff, "dialect": dialect}
        options["batch_dims"] = batch_dims
        method: Any = service.gathernd_backward
        if op is Gathered.GATHER:
            method, options = service.gather_backward, options | {"axis": axis}
        found = method(load(indices), load(grad_output), sparse=sparse, **options)
        print_or_save({"indices": found.indices, "values": found.values} if sparse else {"": found}, output)

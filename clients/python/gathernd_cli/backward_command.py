"""`gathernd backward`: the gradient of a gather by a running service, from npy files into npy files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .call_options import called_wrongly
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit


class Gathered(Enum):
    """The operators that have a gradient."""

    GATHERND = "gathernd"
    GATHER = "gather"


_BOTH: Final = "openvino-8"
"""The dialect in which gather has an axis and batch_dims."""

app = typer.Typer(add_completion=False)


def _shape(text: str) -> list[int]:
    """The sizes in a text such as 200000,64; an empty one is the shape of a scalar. Ends with 2 for another text."""
    try:
        return [int(size) for size in text.split(",")] if text else []
    except ValueError:
        called_wrongly(f"--data-shape {text!r} is no shape such as 200000,64")


@app.command("backward")
def backward(
    indices: Annotated[Path, typer.Argument(help="npy file of the gather's indices.")],
    grad_output: Annotated[Path, typer.Argument(help="npy file of the gradient of the gather's output.")],
    op: Annotated[Gathered, typer.Option(help="Of which gather.")] = Gathered.GATHERND,
    data_shape: Annotated[str | None, typer.Option(help="Shape of the gather's data, such as 200000,64.")] = None,
    tensor: Annotated[str | None, typer.Option(help="Or a resident tensor that has this shape.")] = None,
    batch_dims: Annotated[
        int, typer.Option(help="Leading dimensions that are batches (gathernd; gather in the dialect openvino-8).")
    ] = 0,
    axis: Annotated[int, typer.Option(help="Axis that was gathered on (gather).")] = 0,
    lda_coeff: Annotated[float, typer.Option(help="What the sums are multiplied by.")] = 1.0,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Only the slices that were gathered: their indices, and their values.")
    ] = False,
    dialect: Annotated[str, typer.Option(help="Whose rules hold.")] = "onnx-13",
    output: Annotated[
        Path | None,
        typer.Option(
            help="npy file to write; a sparse gradient is written beside it, as OUT.indices.npy and OUT.values.npy for "
            "OUT.npy. Without it the gradient is printed."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """The gradient of the data of a gather, by a running service: npy files in, npy files out."""
    if (data_shape is None) == (tensor is None):
        called_wrongly("give either --data-shape, the shape of the gather's data, or --tensor, a resident one")
    if (batch_dims and dialect != _BOTH) if op is Gathered.GATHER else axis:
        called_wrongly(f"--batch-dims belongs to --op gathernd or --dialect {_BOTH}, --axis to --op gather")
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

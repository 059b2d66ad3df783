"""`gathernd call`: a gather by a running service, from npy files into an npy file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from .connect_or_exit import DEFAULT_URL, Key, Url, connect_or_exit
from .npy_files import load, replacing, storable

RESIDENT: Final = "tensor:"


class Operator(Enum):
    """The operators that a call may ask for."""

    GATHERND = "gathernd"
    GATHER = "gather"
    GATHER_ELEMENTS = "gather_elements"


PARAMETERS: Final[Mapping[Operator, str]] = {
    Operator.GATHERND: "batch_dims",
    Operator.GATHER: "axis",
    Operator.GATHER_ELEMENTS: "axis",
}
"""The name of each operator's parameter."""


def _taken_by(parameter: str) -> str:
    """The operators with this parameter."""
    return " or ".join(op.value for op, name in PARAMETERS.items() if name == parameter)


def call(
    data: Annotated[str, typer.Argument(help="npy file of the data, or tensor:NAME of a resident one.")],
    indices: Annotated[Path, typer.Argument(help="npy file of the indices.")],
    op: Annotated[Operator, typer.Option(help="Which operator.")] = Operator.GATHERND,
    batch_dims: Annotated[int, typer.Option(help="Leading dimensions that are batches (gathernd).")] = 0,
    axis: Annotated[int, typer.Option(help="Axis to gather on (gather, gather_elements).")] = 0,
    dialect: Annotated[str, typer.Option(help="Whose rules hold.")] = "onnx-13",
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    output: Annotated[Path | None, typer.Option(help="npy file to write; without it the output is printed.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Gather by a running service: npy files in, an npy file out."""
    parameters = {"batch_dims": batch_dims, "axis": axis}
    parameter = parameters.pop(PARAMETERS[op])
    if any(parameters.values()):
        owners = (f"--{name.replace('_', '-')} belongs to --op {_taken_by(name)}" for name in ("batch_dims", "axis"))
        typer.echo(f"gathernd: {', '.join(owners)}", err=True)
        raise typer.Exit(2)
    with connect_or_exit(url, key) as service:
        source: Any = data.removeprefix(RESIDENT) if data.startswith(RESIDENT) else load(Path(data))
        gather = getattr(service, op.value)  # the client's method of the operator's name
        found = gather(source, load(indices), parameter, dialect=dialect, device=device)
        if output is None:
            typer.echo(np.array2string(found, threshold=1000))
            return
        with replacing(output) as temporary, temporary.open("wb") as file:
            np.save(file, storable(found), allow_pickle=False)

"""`gathernd call`: a gather by a running service, from npy files into an npy file."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from .connection import DEFAULT_URL, Key, Url, connected
from .npy_files import load, replacing, storable

RESIDENT: Final = "tensor:"


class Operator(Enum):
    """The operators that a call may ask for."""

    GATHERND = "gathernd"
    GATHER = "gather"


def call(
    data: Annotated[str, typer.Argument(help="npy file of the data, or tensor:NAME of a resident one.")],
    indices: Annotated[Path, typer.Argument(help="npy file of the indices.")],
    op: Annotated[Operator, typer.Option(help="Which operator.")] = Operator.GATHERND,
    batch_dims: Annotated[int, typer.Option(help="Leading dimensions that are batches (gathernd).")] = 0,
    axis: Annotated[int, typer.Option(help="Axis to gather on (gather).")] = 0,
    dialect: Annotated[str, typer.Option(help="Whose rules hold.")] = "onnx-13",
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    output: Annotated[Path | None, typer.Option(help="npy file to write; without it the output is printed.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Gather by a running service: npy files in, an npy file out."""
    if (axis if op is Operator.GATHERND else batch_dims) != 0:
        typer.echo("gathernd: --batch-dims belongs to --op gathernd, --axis to --op gather", err=True)
        raise typer.Exit(2)
    with connected(url, key) as service:
        source: Any = data.removeprefix(RESIDENT) if data.startswith(RESIDENT) else load(Path(data))
        if op is Operator.GATHERND:
            found = service.gathernd(source, load(indices), batch_dims, dialect=dialect, device=device)
        else:
            found = service.gather(source, load(indices), axis, dialect=dialect, device=device)
        if output is None:
            typer.echo(np.array2string(found, threshold=1000))
            return
        with replacing(output) as temporary, temporary.open("wb") as file:
            np.save(file, storable(found), allow_pickle=False)

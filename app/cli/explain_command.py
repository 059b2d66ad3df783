"""`gathernd explain`: the backend that the service would choose for a gather or a scatter of given shapes, and why."""

from __future__ import annotations

from typing import Annotated, Any, cast, get_args

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.api.error_catalogue import hint_of
from app.api.schemas.explain_answer import explanation_body
from app.cli.offline_service import ROUTE_NAMES, CacheDir, Json, service_of, settings_with
from app.errors import GatherError
from app.memory.budget import MemoryReservation
from app.operators.registry import OPERATORS
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call, Device
from app.tensors.operator_signature import Parameter, Signature
from app.tensors.scatter_call import Reduction
from app.tensors.tensor import Tensor

app = typer.Typer(add_completion=False)


def _taken_by(parameter: str) -> str:
    """The operators with this parameter."""
    return " or ".join(name for name, row in OPERATORS.items() if row.signature.parameter == parameter)


@app.command("explain")
def explain(
    data_shape: Annotated[str, typer.Option(help="Shape of the data, such as 200000,64.")],
    indices_shape: Annotated[str, typer.Option(help="Shape of the indices, such as 256,1.")],
    data_dtype: Annotated[str, typer.Option(help="Element type of the data.")] = "float32",
    indices_dtype: Annotated[str, typer.Option(help="Element type of the indices.")] = "int64",
    op: Annotated[str, typer.Option(help="Which operator.", metavar=f"[{'|'.join(OPERATORS)}]")] = "gathernd",
    batch_dims: Annotated[
        int,
        typer.Option(help=f"Leading dimensions that are batches ({_taken_by('batch_dims')}; gather in openvino-8)."),
    ] = 0,
    axis: Annotated[int, typer.Option(help=f"Axis to gather or scatter on ({_taken_by('axis')}).")] = 0,
    reduction: Annotated[
        str, typer.Option(help=f"How updates of a scatter combine: {', '.join(get_args(Reduction))}.")
    ] = "none",
    dialect: Annotated[
        str | None, typer.Option(help="Whose rules hold; onnx-18 for scatters, else onnx-13.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    resident: Annotated[bool, typer.Option("--resident", help="The data lies on the GPU already.")] = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Say what the service would do with a gather or a scatter of these shapes, and why, without running it."""
    _check_one_of("op", op, OPERATORS)
    signature = OPERATORS[op].signature
    dialect = signature.default_dialect if dialect is None else dialect
    parameters: dict[Parameter, int] = {"batch_dims": batch_dims, "axis": axis}
    parameter = 0 if signature.parameter is None else parameters.pop(signature.parameter)
    own = signature.dialect_fields.get(dialect)
    beside = parameters.pop("batch_dims") if own is not None and own.batch_dims else 0
    if any(parameters.values()):
        owners = (f"--{name.replace('_', '-')} belongs to --op {_taken_by(name)}" for name in ("batch_dims", "axis"))
        raise typer.BadParameter(", ".join(owners))
    _check_one_of("dialect", dialect, signature.dialects)
    _check_one_of("reduction", reduction, signature.reductions.get(dialect, ("none",)))
    _check_one_of("device", device, ("auto", "cpu", "gpu"))
    _check_one_of("data-dtype", data_dtype, DTYPES)
    _check_one_of("indices-dtype", indices_dtype, DTYPES)
    shapes = _shape(data_shape), _shape(indices_shape)
    service = service_of(settings_with(cache_dir), refresh=False)
    # Only types and shapes are looked at: the tensors have no items.
    data, indices = (
        Tensor(dtype, shape, np.empty(0, dtype.numpy), shape_pointer=pointer, dtype_pointer=pointer)
        for dtype, shape, pointer in zip(
            (DTYPES[data_dtype], DTYPES[indices_dtype]), shapes, ("/data", "/indices"), strict=True
        )
    )
    asked: Device = "auto" if device == "auto" else "cpu" if device == "cpu" else "gpu"
    call = Call(signature.operator, data, indices, parameter, dialect, asked, signature.pointer, batch_dims=beside)
    if signature.kind == "scatter":
        call.updates = _updates(signature, data, indices)
        call.reduction = cast(Reduction, reduction)
    try:
        found = service.explain(call, MemoryReservation(service.budget), on_device=resident)
    except GatherError as error:
        typer.echo(f"gathernd: {error.code}: {error.detail}\n{hint_of(error, 0)}", err=True)
        raise typer.Exit(1) from None
    body = explanation_body(found)
    if as_json:
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
    else:
        _print_explanation(body)


def _updates(signature: Signature, data: Tensor, indices: Tensor) -> Tensor:
    """Updates of the shape that they must have, without items."""
    shape = indices.shape
    if signature.operator == "scatternd":
        shape = (*shape[:-1], *data.shape[shape[-1] :]) if shape else ()
    return Tensor(data.dtype, shape, np.empty(0, data.dtype.numpy), shape_pointer="/updates", dtype_pointer="/updates")


def _check_one_of(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise typer.BadParameter(f"--{name} must be one of {', '.join(known)}")


def _print_explanation(body: dict[str, Any]) -> None:
    output, found = body["output"], body["explanation"]
    plan, choice = found["plan"], found["choice"]
    size = "" if found["output_bytes"] is None else f", {found['output_bytes']:,} bytes"
    typer.echo(f"output: {output['dtype']} {list(output['shape'])}{size}")
    shared = ", which all batches share" if plan["shared"] else ""
    typer.echo(
        f"plan: {plan['batches']:,} x {plan['tuples']:,} tuples{shared} over axes of {list(plan['dims'])}, "
        f"slices of {plan['slice_items']:,} x {plan['item_size']} bytes"
    )
    table = Table()
    for name in ("route", "predicted µs", "open", "why not"):
        table.add_column(name, justify="right" if "µ" in name else "left")
    for route in found["routes"]:
        time = "" if route["microseconds"] is None else f"{route['microseconds']:,.1f}"
        table.add_row(ROUTE_NAMES[route["route"]], time, "yes" if route["open"] else "no", route.get("reason", ""))
    Console().print(table)
    parts = f" in {choice['parts']} parts" if choice["parts"] > 1 else ""
    typer.echo(f"choice: {ROUTE_NAMES[choice['route']]}{parts}, on the {body['device'].upper()}")
    typer.echo(found["not_checked"])


def _shape(text: str) -> tuple[int, ...]:
    """The sizes in a text such as 200000,64; an empty one is the shape of a scalar."""
    try:
        shape = tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise typer.BadParameter(f"{text!r} is no shape such as 200000,64")
    return shape

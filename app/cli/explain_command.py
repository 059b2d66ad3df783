"""`gathernd explain`: show which backend the service would choose for a call of given shapes, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, cast, get_args

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.api.schemas.explain_answer import explanation_body
from app.cli.failure import failure
from app.cli.offline_service import ROUTE_NAMES, CacheDir, Json, service_of, settings_with, size_text
from app.errors import GatherError
from app.errors.hints import hint_of
from app.memory.budget import MemoryReservation
from app.operators.registry import GRADIENTS, OPERATORS, ROWS
from app.services.runner import AnyCall
from app.store import Resident, Store
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import DEVICES, Call, Device
from app.tensors.lookup_call import LOOKUP, POOLINGS, Feature, LookupCall, Pooling
from app.tensors.operator_signature import BackwardName, OperatorName, Reduction, Signature
from app.tensors.tensor import Tensor

OPS: Final = tuple(ROWS)
_BAGS: Final = POOLINGS[1:]
_SIGNATURES: Final[Mapping[str, Signature]] = {name: row.signature for name, row in ROWS.items()}

app = typer.Typer(add_completion=False)


def _operators_with(parameter: str) -> str:
    """Return the names of the operators with this parameter, for a message."""
    return " or ".join(
        name for name, signature in _SIGNATURES.items() if any(one.name == parameter for one in signature.parameters)
    )


@app.command("explain")
def explain(
    data_shape: Annotated[str | None, typer.Option(help="Shape of the data, such as 200000,64.")] = None,
    indices_shape: Annotated[str | None, typer.Option(help="Shape of the indices, such as 256,1.")] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="A feature of a lookup: the shapes of the table and of the indices and, if the rows are pooled, the "
            "number of bags: 200000,64:256 or 200000,64:27392:128. Repeat for each feature.",
            metavar="TABLE:INDICES[:BAGS]",
        ),
    ] = None,
    data_dtype: Annotated[str, typer.Option(help="Element type of the data.")] = "float32",
    indices_dtype: Annotated[str, typer.Option(help="Element type of the indices.")] = "int64",
    op: Annotated[str, typer.Option(help="Operator to explain.", metavar=f"[{'|'.join(OPS)}]")] = "gathernd",
    batch_dims: Annotated[
        int,
        typer.Option(
            help=f"Number of leading dimensions that are batches ({_operators_with('batch_dims')}; gather and its "
            "gradient in the dialect openvino-8)."
        ),
    ] = 0,
    axis: Annotated[int, typer.Option(help=f"Axis of data to index ({_operators_with('axis')}).")] = 0,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            help="Another parameter of the operator, such as bits=8. Repeat for each parameter.", metavar="NAME=NUMBER"
        ),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Type and shape of another input of the operator, such as scales=float16:200000,2. Repeat for each "
            "input.",
            metavar="NAME=DTYPE:SHAPE",
        ),
    ] = None,
    reduction: Annotated[
        str,
        typer.Option(
            help=f"How to combine an update with the current value (scatters): {', '.join(get_args(Reduction))}."
        ),
    ] = "none",
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Gradients: return only the slices that an index addresses.")
    ] = False,
    pooling: Annotated[
        str,
        typer.Option(help=f"How to combine the rows of a bag into one row: {', '.join(_BAGS)}.", show_default=False),
    ] = "sum",
    concat: Annotated[
        bool, typer.Option(help="Join the outputs of a lookup on axis 1, or keep one output per feature.")
    ] = True,
    dialect: Annotated[
        str | None,
        typer.Option(
            help="Specification and version whose rules apply. If omitted: onnx-18 for scatters, onnxruntime-1 for "
            "gather_block_quantized, otherwise onnx-13.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Device to run on: auto, cpu or gpu.")] = "auto",
    resident: Annotated[bool, typer.Option("--resident", help="The data is already on the GPU.")] = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Show which backend the service would choose for a call of these shapes, and why, without running it."""
    _check_one_of("op", op, OPS)
    _check_one_of("data-dtype", data_dtype, DTYPES)
    _check_one_of("indices-dtype", indices_dtype, DTYPES)
    _check_one_of("pooling", pooling, _BAGS)
    _check_one_of("device", device, DEVICES)
    dtype, indices_type = DTYPES[data_dtype], DTYPES[indices_dtype]
    call: AnyCall
    if op == LOOKUP:
        if not feature or data_shape is not None or indices_shape is not None:
            raise typer.BadParameter("--op lookup takes --feature, but no --data-shape or --indices-shape")
        if dialect is not None or device == "gpu" or resident or batch_dims or axis:
            raise typer.BadParameter("lookups have one dialect, select rows along axis 0, and run on the CPU")
        features = [
            _feature(text, indices_type, cast(Pooling, pooling), f"/features/{number}")
            for number, text in enumerate(feature)
        ]
        call = LookupCall(features, concat)
    else:
        if feature:
            raise typer.BadParameter("--feature belongs to --op lookup")
        if data_shape is None or indices_shape is None:
            raise typer.BadParameter(f"--op {op} takes --data-shape and --indices-shape")
        given = {"batch_dims": batch_dims, "axis": axis} | dict(map(_number, parameter or ()))
        parameters, beside, dialect = _parameters(op, dialect, given, reduction)
        gather = Call(
            GRADIENTS[cast(BackwardName, op)].gather if op in GRADIENTS else cast(OperatorName, op),
            _by_shape(dtype, _shape(data_shape), "/data"),
            _by_shape(indices_type, _shape(indices_shape), "/indices"),
            parameters,
            dialect,
            cast(Device, device),
            further=_inputs(op, input_ or ()),
            reduction=cast(Reduction, reduction),
            batch_dims=beside,
        )
        call = _gradient(cast(BackwardName, op), gather, sparse) if op in GRADIENTS else _with_updates(gather)
    if sparse and op not in GRADIENTS:
        raise typer.BadParameter(f"--sparse belongs to --op {' or '.join(GRADIENTS)}")
    service = service_of(settings_with(cache_dir), refresh=False)
    service.store = _TablesByShape(dtype)
    try:
        body = explanation_body(service.explain(call, MemoryReservation(service.budget), on_device=resident))
    except GatherError as error:
        raise failure(f"{error.code}: {error.detail}\n{hint_of(error, 0)}") from None
    if op == LOOKUP:
        del body["features"]  # the ETags of the data that would be read
    if as_json:
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
    else:
        _print_explanation(body)


def _parameters(
    op: str, dialect: str | None, given: dict[str, int], reduction: str
) -> tuple[tuple[int, ...], int, str]:
    """Return the operator's parameters, the batch_dims that an operator may have in addition to an axis, and the
    dialect.
    """
    signature = _SIGNATURES[op]
    dialect = signature.default_dialect if dialect is None else dialect
    parameters = tuple(given.pop(one.name, one.default) for one in signature.parameters)
    own = signature.dialect_fields.get(dialect)
    beside = given.pop("batch_dims") if own is not None and own.batch_dims else 0
    for name in given.keys() - {"batch_dims", "axis"}:
        raise typer.BadParameter(f"--op {op} has no parameter {name}")
    if any(given.values()):
        owners = (
            f"--{name.replace('_', '-')} belongs to --op {_operators_with(name)}" for name in ("batch_dims", "axis")
        )
        raise typer.BadParameter(", ".join(owners))
    _check_one_of("dialect", dialect, signature.dialects)
    _check_one_of("reduction", reduction, signature.reductions.get(dialect, ("none",)))
    return parameters, beside, dialect


def _number(text: str) -> tuple[str, int]:
    """Parse a parameter such as bits=8. Raises BadParameter."""
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not of the form NAME=NUMBER, such as bits=8") from None


def _inputs(op: str, texts: Sequence[str]) -> Mapping[str, Tensor]:
    """Parse inputs such as scales=float16:200000,2 into tensors by name. Raises BadParameter."""
    found: dict[str, Tensor] = {}
    for text in texts:
        name, _, described = text.partition("=")
        dtype, colon, shape = described.partition(":")
        if not colon:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=DTYPE:SHAPE, such as scales=float16:200000,2")
        _check_one_of("input", name, _further_inputs(op))
        _check_one_of("input", dtype, DTYPES)
        found[name] = _by_shape(DTYPES[dtype], _shape(shape), f"/{name}")
    missing = [
        name for name in _further_inputs(op) if name not in found and name not in OPERATORS[op].signature.optional
    ]
    if missing:
        raise typer.BadParameter(f"--op {op} takes --input {missing[0]}=DTYPE:SHAPE")
    return found


def _further_inputs(op: str) -> Sequence[str]:
    """Return the names of those inputs of the operator whose type and shape are not determined by data and indices."""
    signature = _SIGNATURES[op]
    return signature.further if signature.kind == "gather" else ()


def _feature(text: str, dtype: DType, pooling: Pooling, pointer: str) -> Feature:
    """Parse a feature such as 200000,64:27392:128; without bags it is not pooled. Raises BadParameter."""
    table, colon, rest = text.partition(":")
    indices, pooled, bags = rest.partition(":")
    if not colon or (pooled and not bags.isdecimal()):
        raise typer.BadParameter(
            f"{text!r} is not of the form TABLE:INDICES or TABLE:INDICES:BAGS, such as 200000,64:256"
        )
    return Feature(
        ",".join(map(str, _shape(table))),
        _by_shape(dtype, _shape(indices), f"{pointer}/indices"),
        _by_shape(dtype, (int(bags),), f"{pointer}/offsets") if pooled else None,
        pooling=pooling if pooled else "none",
        pointer=pointer,
    )


class _TablesByShape(Store):
    """A store that has one tensor of every shape. The name of each tensor is its shape."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype

    def get(self, reference: str) -> Resident:
        """Return a tensor of the shape `reference`, such as 200000,64."""
        return Resident(_by_shape(self._dtype, _shape(reference), ""), "")


def _with_updates(call: Call) -> Call:
    """Add updates of the required shape to a scatter's call; return other calls unchanged."""
    if OPERATORS[call.operator].signature.kind == "scatter":
        assert isinstance(call.data, Tensor)
        shape = call.indices.shape
        if call.operator == "scatternd":
            shape = (*shape[:-1], *call.data.shape[shape[-1] :]) if shape else ()
        call.further = {"updates": _by_shape(call.data.dtype, shape, "/updates")}
    return call


def _gradient(op: BackwardName, call: Call, sparse: bool) -> BackwardCall:
    """Return the call for the gradient of a gather, with a `grad_output` of the required shape."""
    assert isinstance(call.data, Tensor)
    try:
        _, shape, _ = OPERATORS[call.operator].plan(GRADIENTS[op].dialects[call.dialect], call, call.data, {})
    except GatherError:
        shape = ()  # the service reports the same error before it looks at grad_output
    grad_output = _by_shape(call.data.dtype, shape, "/grad_output")
    return BackwardCall(
        op, call.indices, grad_output, call.data.shape, call.parameters, 1.0, sparse, call.dialect, call.device,
        batch_dims=call.batch_dims,
    )  # fmt: skip


def _by_shape(dtype: DType, shape: tuple[int, ...], pointer: str) -> Tensor:
    """Return a tensor that has a type and a shape, but no items."""
    return Tensor(dtype, shape, np.empty(0, dtype.numpy), shape_pointer=pointer, dtype_pointer=pointer)


def _check_one_of(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise typer.BadParameter(f"--{name} must be one of {', '.join(known)}")


def _print_explanation(body: dict[str, Any]) -> None:
    found = body["explanation"]
    choice = found["choice"]
    outputs = [body["output"]] if "output" in body else body.get("outputs", [])
    if "grad_data" in body:
        outputs = [body["grad_data"]]
    size = "" if found["output_bytes"] is None else f", {found['output_bytes']:,} bytes"
    shapes = "; ".join(f"{one['dtype']} {list(one['shape'])}" for one in outputs)
    typer.echo(f"output: {shapes or 'the slices that were gathered, at most'}{size}")
    if "plan" in found:
        plan = found["plan"]
        shared = ", which all batches share" if plan["shared"] else ""
        typer.echo(
            f"plan: {plan['batches']:,} x {plan['tuples']:,} tuples{shared} over axes of {list(plan['dims'])}, "
            f"slices of {plan['slice_items']:,} x {plan['item_size']} bytes"
        )
    for number, feature in enumerate(found.get("features", ())):
        pooled = "" if feature["pooling"] == "none" else f", pooled by {feature['pooling']}"
        typer.echo(
            f"feature {number}: {list(feature['indices']['shape'])} rows of {list(feature['table']['shape'])}{pooled}, "
            f"{feature['bytes_read']:,} bytes read, to {list(feature['output_shape'])}"
        )
    table = Table()
    for name in ("route", "open", "why", "threshold"):
        table.add_column(name)
    for route in found["routes"]:
        threshold = size_text(route["threshold"]) if "threshold" in route else ""
        table.add_row(ROUTE_NAMES[route["route"]], "yes" if route["open"] else "no", route["reason"], threshold)
    typer.echo(f"size: {size_text(found['size'])}")
    Console().print(table)
    parts = f" in {choice['parts']} parts" if choice["parts"] > 1 else ""
    typer.echo(f"choice: {ROUTE_NAMES[choice['route']]}{parts}, on the {body.get('device', 'cpu').upper()}")
    typer.echo(found["not_checked"])


def _shape(text: str) -> tuple[int, ...]:
    """Parse a shape such as 200000,64; an empty text is the shape of a scalar. Raises BadParameter."""
    try:
        shape = tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise typer.BadParameter(f"{text!r} is not a shape, such as 200000,64")
    return shape

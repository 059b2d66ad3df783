"""The operators, one row each: the fields of their requests, their versions, and their planners.

Routes, models, schemas, commands and metrics of an operator are all generated from its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from app.errors import CODES, Code
from app.operators.backward import Backward, plan_gather_backward, plan_gathernd_backward
from app.operators.dialects import (
    EMBEDDING_BAG_OFFSETS,
    GATHER,
    GATHER_BLOCK_QUANTIZED,
    GATHER_ELEMENTS,
    GATHERND,
    SCATTER_ELEMENTS,
    SCATTERND,
    Dialect,
)
from app.operators.gather_block_quantized import plan_gather_block_quantized
from app.operators.gather_elements import plan_gather_elements
from app.operators.gather_plan import Plan
from app.operators.gathers import plan_gather, plan_gathernd
from app.operators.lookup_plan import LookupPlan, plan_lookup
from app.operators.scatters import plan_scatter_elements, plan_scatternd
from app.tensors.backward_call import BackwardCall
from app.tensors.gather_call import Call
from app.tensors.lookup_call import LOOKUP_SIGNATURE, LookupCall
from app.tensors.operator_signature import (
    AXIS,
    BATCH_DIMS,
    BITS,
    BLOCK_SIZE,
    GATHER_AXIS,
    QUANTIZE_AXIS,
    BackwardName,
    Kind,
    OperatorName,
    Parameter,
    Signature,
)
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

Planned = tuple[Plan, tuple[int, ...], int]
"""The plan, the output's shape, and the axis of data to which the first component of an index tuple belongs."""
Planner = Callable[[Dialect, Call, Tensor, Mapping[str, Tensor]], Planned]
"""Builds a plan from a dialect, a call, its data and its other inputs.

Raises the operator's errors on types and shapes. The types of data and indices are checked by `check_dtypes` instead.
"""
BackwardPlanner = Callable[[Dialect, BackwardCall, Tensor, Limits], Backward]
"""Builds a plan from a dialect, a call, and the gather's data, whose items are not read.

Raises errors on shapes and limits.
"""
LookupPlanner = Callable[[LookupCall, Sequence[Tensor], Limits], LookupPlan]
"""Builds a plan from a call, the table of each feature, and the limits.

Raises errors on types, shapes and limits.
"""
P = TypeVar("P")


@dataclass(frozen=True, slots=True, eq=False)
class Row(Generic[P]):
    """One operator, the gradient of an operator (with the gather's dialects), or the lookup.

    `summary` is a one-line description for callers; `texts` lists its specifications. `on_gpu` says whether the GPU
    kernel can run its plans. `typed_by` is the input that determines the output's type. `uncited` lists those errors of
    its rules that do not cite a specification.
    """

    signature: Signature
    summary: str
    texts: tuple[str, ...]
    dialects: Mapping[str, Dialect]
    plan: P
    on_gpu: bool
    typed_by: str
    uncited: tuple[Code, ...] = ()

    @property
    def name(self) -> str:
        """Name of the operator, of its model, and of its method in clients."""
        return self.signature.operator

    @property
    def gather(self) -> OperatorName:
        """For a gradient, the name of its gather."""
        return cast(OperatorName, self.name.removesuffix(_BACKWARD))

    @property
    def path(self) -> str:
        """Path of the operator's route."""
        return f"/{self.name.replace(_BACKWARD, '/backward')}"

    @property
    def operation(self) -> str:
        """Name of the operator in OpenAPI, in camel case. Generated clients use it as the method name."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def codes(self) -> tuple[Code, ...]:
        """Error codes of the rules on shapes and indices, in the catalogue's order."""
        broken = {*self.uncited, *(code for dialect in self.dialects.values() for code in dialect.rules)}
        return tuple(code for code in CODES if code in broken)


Operator = Row[Planner]
Gradient = Row[BackwardPlanner]
Lookup = Row[LookupPlanner]


def _row(
    name: OperatorName | BackwardName,
    parameters: tuple[Parameter, ...],
    dialects: Mapping[str, Dialect],
    plan: P,
    *,
    summary: str,
    schema: tuple[str, str],
    inputs: tuple[str, ...] = ("data", "indices"),
    optional: tuple[str, ...] = (),
    residents: tuple[str, ...] = ("data",),
    kind: Kind = "gather",
    on_gpu: bool = True,
    typed_by: str = "data",
    uncited: tuple[Code, ...] = (),
    keyed: bool = False,
) -> Row[P]:
    names = tuple(dialects)
    reductions = {dialect.name: dialect.reductions for dialect in dialects.values() if dialect.reductions}
    fields = {dialect.name: dialect.fields for dialect in dialects.values() if dialect.fields is not None}
    signature = Signature(
        name, parameters, names, inputs, names[0], kind, reductions, fields, optional, residents, schema, keyed
    )
    return Row(signature, summary, _texts(name, names), dialects, plan, on_gpu, typed_by, uncited)


_BACKWARD: Final = "_backward"
_PUBLISHERS: Final = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}


def _texts(name: str, dialects: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the dialects' specifications, such as "ONNX GatherND 11, 12 and 13" and "OpenVINO
    GatherND-8".
    """
    title = name.title().replace("nd", "ND").replace("_", "")
    versions = [dialect.split("-") for dialect in dialects]
    onnx = sorted((number for by, number in versions if by == "onnx"), key=int)
    numbers = " and ".join(filter(None, (", ".join(onnx[:-1]), *onnx[-1:])))
    others = (f"{_PUBLISHERS[by]} {title}-{number}" for by, number in versions if by != "onnx")
    return (*((f"ONNX {title} {numbers}",) if onnx else ()), *others)


_ROWS: Final[tuple[Operator, ...]] = (
    _row(
        "gathernd",
        (BATCH_DIMS,),
        GATHERND,
        plan_gathernd,
        summary="Gather slices by index tuples (GatherND)",
        schema=(
            "GatherNDRequest",
            "A GatherND: each tuple in the last dimension of `indices` picks an element or slice of `data`.",
        ),
    ),
    _row(
        "gather",
        (AXIS,),
        GATHER,
        plan_gather,
        summary="Gather slices along an axis (Gather)",
        schema=("GatherRequest", "A Gather: each entry of `indices` picks a slice of `data` along `axis`."),
        uncited=("no_keys", "key_not_found"),
        keyed=True,
    ),
    _row(
        "gather_elements",
        (AXIS,),
        GATHER_ELEMENTS,
        plan_gather_elements,
        summary="Gather single elements along an axis (GatherElements)",
        schema=(
            "GatherElementsRequest",
            "A GatherElements: each entry of `indices`, which has data's rank, picks one item of `data` along `axis`.",
        ),
        on_gpu=False,
    ),
    _row(
        "gather_block_quantized",
        (GATHER_AXIS, QUANTIZE_AXIS, BLOCK_SIZE, BITS),
        GATHER_BLOCK_QUANTIZED,
        plan_gather_block_quantized,
        summary="Gather rows of 4-bit or 8-bit blocks, dequantized (GatherBlockQuantized)",
        schema=(
            "GatherBlockQuantizedRequest",
            "A GatherBlockQuantized: each entry of `indices` picks a row of `data`, whose values become (value - zero "
            "point) * scale, in the type of `scales`. `scales` has one element per block of values; `zero_points` has "
            "one too, packed like data. If omitted: 2^(bits - 1).",
        ),
        inputs=("data", "indices", "scales", "zero_points"),
        optional=("zero_points",),
        residents=("data", "scales", "zero_points"),
        on_gpu=False,
        typed_by="scales",
    ),
    _row(
        "scatternd",
        (),
        SCATTERND,
        plan_scatternd,
        summary="Scatter slices by index tuples into a copy of the data (ScatterND)",
        schema=(
            "ScatterNDRequest",
            "A ScatterND: a copy of `data` with updates. Each tuple in the last dimension of `indices` addresses the "
            "element or slice to update.",
        ),
        inputs=("data", "indices", "updates"),
        kind="scatter",
        on_gpu=False,
    ),
    _row(
        "scatter_elements",
        (AXIS,),
        SCATTER_ELEMENTS,
        plan_scatter_elements,
        summary="Scatter single elements along an axis into a copy of the data (ScatterElements)",
        schema=(
            "ScatterElementsRequest",
            "A ScatterElements: a copy of `data` with updates. Each entry of `indices`, which has data's rank, gives "
            "the position along `axis` for the update at the same position in `updates`.",
        ),
        inputs=("data", "indices", "updates"),
        kind="scatter",
        on_gpu=False,
    ),
)
OPERATORS: Final[Mapping[str, Operator]] = {row.name: row for row in _ROWS}
_GRADIENTS: Final[tuple[Gradient, ...]] = (
    _row(
        "gathernd_backward",
        (BATCH_DIMS,),
        GATHERND,
        plan_gathernd_backward,
        summary="Gradient of GatherND: add slices at their indices",
        schema=(
            "GatherNDBackwardRequest",
            "The gradient of a GatherND: zeros in the data's shape, with each slice of `grad_output` added at its "
            "index.",
        ),
        inputs=("indices", "grad_output"),
        residents=(),
        kind="gradient",
        on_gpu=False,
        typed_by="grad_output",
        uncited=("updates_shape_mismatch",),
    ),
    _row(
        "gather_backward",
        (AXIS,),
        GATHER,
        plan_gather_backward,
        summary="Gradient of Gather: add slices at their indices along an axis",
        schema=(
            "GatherBackwardRequest",
            "The gradient of a Gather: zeros in the data's shape, with each slice of `grad_output` added at its index.",
        ),
        inputs=("indices", "grad_output"),
        residents=(),
        kind="gradient",
        on_gpu=False,
        typed_by="grad_output",
        uncited=("updates_shape_mismatch",),
    ),
)
GRADIENTS: Final[Mapping[str, Gradient]] = {row.name: row for row in _GRADIENTS}
"""The gradients of the gathers.

They have no model in the inference protocol: training clients use JSON or safetensors.
"""
LOOKUPS: Final[Lookup] = Row(
    LOOKUP_SIGNATURE,
    "Rows of many resident tensors, as single rows or pooled bags",
    ("OpenVINO EmbeddingBagOffsets-15",),
    EMBEDDING_BAG_OFFSETS,
    plan_lookup,
    on_gpu=False,
    typed_by="features",
    uncited=("feature_mismatch", "no_keys", "key_not_found"),
)
ROWS: Final[Mapping[str, Row[Any]]] = {**OPERATORS, **GRADIENTS, LOOKUPS.name: LOOKUPS}
"""All operators that have their own route, by name."""

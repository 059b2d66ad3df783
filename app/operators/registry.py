"""The operators, a row each: what their requests may say, their versions, and how shapes become a plan.

Every route, model, schema, command and metric of an operator is made from its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from app.errors import CODES, Code
from app.operators.dialects import GATHER, GATHER_ELEMENTS, GATHERND, SCATTER_ELEMENTS, SCATTERND, Dialect
from app.operators.gather import plan_gather
from app.operators.gather_elements import plan_gather_elements
from app.operators.gather_plan import Plan
from app.operators.gathernd import plan_gathernd
from app.operators.scatter_elements import plan_scatter_elements
from app.operators.scatternd import plan_scatternd
from app.tensors.gather_call import Call
from app.tensors.operator_signature import Kind, OperatorName, Parameter, Signature
from app.tensors.tensor import Tensor

Planned = tuple[Plan, tuple[int, ...], int]
"""The plan, the output's shape, and the axis of data that the first component of an index tuple belongs to."""
Planner = Callable[[Dialect, Call, Tensor], Planned]
"""Of a dialect, a call and its data. Raises the operator's errors on types and shapes, but for the types of
data and indices, which `check_dtypes` has looked at."""
GatherPlanner = Callable[[Dialect, Tensor, Tensor, int, str], Planned]
"""Of a dialect, data, indices, the parameter and the pointer to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator. `summary` is a line for its callers, `texts` are the specifications that it follows.

    `on_gpu` says whether the GPU's kernel takes its plans.
    """

    signature: Signature
    summary: str
    texts: tuple[str, ...]
    dialects: Mapping[str, Dialect]
    plan: Planner
    on_gpu: bool

    @property
    def name(self) -> OperatorName:
        """Its name: that of its route, its model and its method of the clients."""
        return self.signature.operator

    @property
    def path(self) -> str:
        """The path of its route."""
        return f"/{self.name}"

    @property
    def operation(self) -> str:
        """Its name in OpenAPI, in camel case, as generated clients' methods have it."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def codes(self) -> tuple[Code, ...]:
        """The errors of its rules on shapes and indices, in the catalogue's order."""
        broken = {code for dialect in self.dialects.values() for code in dialect.rules}
        return tuple(code for code in CODES if code in broken)


def _row(
    name: OperatorName,
    parameter: Parameter | None,
    dialects: Mapping[str, Dialect],
    plan: Planner,
    *,
    summary: str,
    inputs: tuple[str, ...] = ("data", "indices"),
    kind: Kind = "gather",
    on_gpu: bool = True,
) -> Operator:
    names = tuple(dialects)
    reductions = {dialect.name: dialect.reductions for dialect in dialects.values() if dialect.reductions}
    fields = {dialect.name: dialect.fields for dialect in dialects.values() if dialect.fields is not None}
    signature = Signature(name, parameter, names, inputs, names[0], kind, reductions, fields)
    return Operator(signature, summary, _texts(name, names), dialects, plan, on_gpu)


def _texts(name: OperatorName, dialects: Iterable[str]) -> tuple[str, ...]:
    """Name the specifications behind the dialects: "ONNX GatherND 11, 12 and 13", then "OpenVINO GatherND-8"."""
    title = name.title().replace("nd", "ND").replace("_", "")
    versions = [dialect.split("-") for dialect in dialects]
    *others, last = sorted((number for by, number in versions if by == "onnx"), key=int)
    numbers = f"{', '.join(others)} and {last}" if others else last
    openvino = (f"OpenVINO {title}-{number}" for by, number in versions if by == "openvino")
    return (f"ONNX {title} {numbers}", *openvino)


def _gather(plan: GatherPlanner) -> Planner:
    """The planner of an operator without further inputs."""
    return lambda dialect, call, data: plan(dialect, data, call.indices, call.parameter, call.parameter_pointer)


def _plan_gather(dialect: Dialect, call: Call, data: Tensor) -> Planned:
    return plan_gather(dialect, data, call.indices, call.parameter, call.parameter_pointer, call.batch_dims)


_ROWS: Final = (
    _row(
        "gathernd",
        "batch_dims",
        GATHERND,
        _gather(plan_gathernd),
        summary="Gather slices by index tuples (GatherND)",
    ),
    _row(
        "gather",
        "axis",
        GATHER,
        _plan_gather,
        summary="Gather slices along an axis (Gather)",
    ),
    _row(
        "gather_elements",
        "axis",
        GATHER_ELEMENTS,
        _gather(plan_gather_elements),
        summary="Gather single elements along an axis (GatherElements)",
        on_gpu=False,
    ),
    _row(
        "scatternd",
        None,
        SCATTERND,
        plan_scatternd,
        summary="Scatter slices by index tuples into a copy of the data (ScatterND)",
        inputs=("data", "indices", "updates"),
        kind="scatter",
        on_gpu=False,
    ),
    _row(
        "scatter_elements",
        "axis",
        SCATTER_ELEMENTS,
        plan_scatter_elements,
        summary="Scatter single elements along an axis into a copy of the data (ScatterElements)",
        inputs=("data", "indices", "updates"),
        kind="scatter",
        on_gpu=False,
    ),
)
OPERATORS: Final[Mapping[str, Operator]] = {row.name: row for row in _ROWS}

"""The gradients of the gathers, a row each: of which gather, and how shapes become a plan.

Their dialects are the gather's. They have no model of the inference protocol: training sends JSON or safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from app.errors import CODES, Code
from app.operators.backward_rules import Backward
from app.operators.dialects import GATHER, GATHERND, Dialect
from app.operators.gather_backward import plan_gather_backward
from app.operators.gathernd_backward import plan_gathernd_backward
from app.tensors.backward_call import BackwardName, BackwardSignature
from app.tensors.operator_signature import AXIS, BATCH_DIMS, OperatorName, Parameter
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


class BackwardPlanner(Protocol):
    """Plans a gradient for data whose items are not read. Raises the errors of shapes and limits."""

    def __call__(
        self,
        dialect: Dialect,
        data: Tensor,
        indices: Tensor,
        grad_output: Tensor,
        parameter: int,
        pointer: str,
        limits: Limits,
        /,
        *,
        sparse: bool,
        sparse_pointer: str,
        further_batch_dims: int,
    ) -> Backward: ...


@dataclass(frozen=True, slots=True, eq=False)
class BackwardOperator:
    """The gradient of `gather`. `summary` is a line for its callers."""

    signature: BackwardSignature
    gather: OperatorName
    summary: str
    dialects: Mapping[str, Dialect]
    plan: BackwardPlanner

    @property
    def name(self) -> BackwardName:
        """Its name: that of its method of the clients."""
        return self.signature.operator

    @property
    def path(self) -> str:
        """The path of its route."""
        return f"/{self.gather}/backward"

    @property
    def operation(self) -> str:
        """Its name in OpenAPI, in camel case, as generated clients' methods have it."""
        return f"{self.gather}Backward"

    @property
    def codes(self) -> tuple[Code, ...]:
        """The errors of its rules on shapes and indices, in the catalogue's order."""
        broken = {code for dialect in self.dialects.values() for code in dialect.rules} | {"updates_shape_mismatch"}
        return tuple(code for code in CODES if code in broken)


def _row(
    name: BackwardName,
    gather: OperatorName,
    parameter: Parameter,
    dialects: Mapping[str, Dialect],
    plan: BackwardPlanner,
    *,
    summary: str,
    schema: tuple[str, str],
) -> BackwardOperator:
    fields = {dialect.name: dialect.fields for dialect in dialects.values() if dialect.fields is not None}
    signature = BackwardSignature(name, (parameter,), tuple(dialects), dialect_fields=fields, schema=schema)
    return BackwardOperator(signature, gather, summary, dialects, plan)


_ROWS: Final = (
    _row(
        "gathernd_backward",
        "gathernd",
        BATCH_DIMS,
        GATHERND,
        plan_gathernd_backward,
        summary="Gradient of GatherND: add slices at their indices",
        schema=(
            "GatherNDBackwardRequest",
            "The gradient of a GatherND: each slice of `grad_output` is added at its index to zeros of the data's "
            "shape.",
        ),
    ),
    _row(
        "gather_backward",
        "gather",
        AXIS,
        GATHER,
        plan_gather_backward,
        summary="Gradient of Gather: add slices at their indices along an axis",
        schema=(
            "GatherBackwardRequest",
            "The gradient of a Gather: each slice of `grad_output` is added at its index to zeros of the data's shape.",
        ),
    ),
)
BACKWARDS: Final[Mapping[BackwardName, BackwardOperator]] = {row.name: row for row in _ROWS}

"""The gradient of a gather, read and typed but not yet judged: what `wire` makes of bytes and answers from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from app.tensors.gather_call import Device
from app.tensors.operator_signature import DEFAULT_DIALECT, DialectFields, Parameter
from app.tensors.tensor import Tensor

BackwardName = Literal["gathernd_backward", "gather_backward"]


@dataclass(frozen=True, eq=False)
class BackwardSignature:
    """A gradient by its names: its own, that of the gather's parameter, and the gather's dialects."""

    operator: BackwardName
    parameter: Parameter
    dialects: tuple[str, ...]
    default_dialect: str = DEFAULT_DIALECT
    dialect_fields: Mapping[str, DialectFields] = field(default_factory=dict)
    """How requests of some dialects differ."""
    inputs: tuple[str, ...] = ("indices", "grad_output")
    kind: Literal["gradient"] = "gradient"

    @cached_property
    def pointer(self) -> str:
        """The parameter in a JSON body."""
        return f"/{self.parameter}"


@dataclass(slots=True)
class BackwardCall:
    """One request: `shape` is that of the gather's data, or the name of a resident tensor that has it.

    The pointers say where the request has each field: those of a query begin with `/query`.
    """

    operator: BackwardName
    indices: Tensor
    grad_output: Tensor
    shape: tuple[int, ...] | str
    parameter: int
    lda_coeff: float
    sparse: bool
    dialect: str
    device: Device = "auto"
    explain: bool = False
    parameter_pointer: str = "/batch_dims"
    shape_pointer: str = "/data_shape"
    batch_dims: int = 0
    """Beside the parameter, in the dialects of Gather that have it."""
    in_query: str = ""
    """What stands before the other fields: nothing, or `/query`."""

    def dtype_pointer(self, number: int) -> str:
        """Where the request has what gives its outputs their type."""
        del number
        return self.grad_output.dtype_pointer

    def pointer(self, field: str) -> str:
        """Where a field stands that is neither a tensor nor the gather's parameter."""
        return f"{self.in_query}/{field}"

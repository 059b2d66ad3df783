"""The gradient of a gather, read and typed but not yet judged: what `wire` makes of bytes and answers from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.tensors.gather_call import AnyCall, Device
from app.tensors.operator_signature import DEFAULT_DIALECT, DialectFields, Parameter
from app.tensors.tensor import Tensor

BackwardName = Literal["gathernd_backward", "gather_backward"]


@dataclass(frozen=True, eq=False)
class BackwardSignature:
    """A gradient by its names: its own, the gather's parameter, and the gather's dialects."""

    operator: BackwardName
    parameters: tuple[Parameter, ...]
    dialects: tuple[str, ...]
    default_dialect: str = DEFAULT_DIALECT
    dialect_fields: Mapping[str, DialectFields] = field(default_factory=dict)
    """How requests of some dialects differ."""
    inputs: tuple[str, ...] = ("indices", "grad_output")
    schema: tuple[str, str] = ("BackwardRequest", "A gradient.")
    kind: Literal["gradient"] = "gradient"


@dataclass(slots=True)
class BackwardCall(AnyCall):
    """One request: `shape` is that of the gather's data, or the name of a resident tensor that has it."""

    operator: BackwardName
    indices: Tensor
    grad_output: Tensor
    shape: tuple[int, ...] | str
    parameters: tuple[int, ...]
    lda_coeff: float
    sparse: bool
    dialect: str
    device: Device = "auto"
    shape_pointer: str = "/data_shape"
    batch_dims: int = 0
    """Beside the parameter, in the dialects of Gather that have it."""

    def dtype_pointer(self, number: int) -> str:
        """Where the request has what gives its outputs their type."""
        del number
        return self.grad_output.dtype_pointer

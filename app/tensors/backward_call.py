"""The gradient of a gather, read and typed but not yet judged: what `requests` makes of a document."""

from __future__ import annotations

from dataclasses import dataclass

from app.tensors.gather_call import AnyCall, Device
from app.tensors.operator_signature import BackwardName
from app.tensors.tensor import Tensor


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

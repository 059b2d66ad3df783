"""The gradient of a gather as parsed by `app.requests`: typed, but not yet validated."""

from __future__ import annotations

from dataclasses import dataclass

from app.tensors.gather_call import AnyCall, Device
from app.tensors.operator_signature import BackwardName
from app.tensors.tensor import Tensor


@dataclass(slots=True)
class BackwardCall(AnyCall):
    """One request for a gradient.

    `shape` is the shape of the gather's data, or the name of a resident tensor of that shape.
    """

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
    """Batch dimensions, in those dialects of Gather that have them in addition to an axis."""

    def dtype_pointer(self, number: int) -> str:
        """Return the pointer to the field that determines the type of the outputs."""
        del number
        return self.grad_output.dtype_pointer

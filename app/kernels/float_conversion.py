"""Convert floats to another float type, rounding once, half to even. Used for `output_dtype`."""

from __future__ import annotations

from typing import Any, Final, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.tensors.dtypes import DType
from app.tensors.gather_call import OutputDType
from app.tensors.tensor import Tensor

OUTPUT_DTYPES: Final[tuple[str, ...]] = get_args(OutputDType)
_BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)


def convert_floats(items: NDArray[Any], dtype: DType, target: DType) -> NDArray[Any]:
    """Convert floats of type `dtype`, given as carriers or items, to the type `target`.

    Values out of range become infinite, and NaN stays NaN. Both types must be float types.
    """
    numbers = items.view(dtype.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        if target.numpy == _BFLOAT16 and dtype.item_size == 8:
            numbers = _rounded_to_odd(numbers)  # ml_dtypes would round twice, via float32
        elif dtype.numpy.kind != "f":
            numbers = numbers.astype(np.float32)  # ml_dtypes floats convert exactly; NumPy does the rounding
        found: NDArray[Any] = numbers.astype(target.numpy, copy=False)
    return found


def as_float_type(tensor: Tensor, target: DType) -> Tensor:
    """Convert a tensor of floats to another float type."""
    return Tensor(target, tensor.shape, convert_floats(tensor.array, tensor.dtype, target))


def _rounded_to_odd(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """Convert float64 to float32, rounded to odd. A later rounding to fewer bits then equals one direct rounding.

    Source: S. Boldo and G. Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
    to odd, IEEE Transactions on Computers 57 (2008).
    """
    nearest = numbers.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(numbers)  # round toward zero
    bits |= nearest != numbers
    return nearest

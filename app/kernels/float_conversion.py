"""Floats of one type to another, each rounded once, half to even: what `output_dtype` asks for."""

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


def converted(items: NDArray[Any], dtype: DType, target: DType) -> NDArray[Any]:
    """Floats of type `dtype`, as carriers or items, in the type `target`.

    What is too large becomes infinite, NaN stays NaN. Both are types of floats.
    """
    numbers = items.view(dtype.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        if target.numpy == _BFLOAT16 and dtype.item_size == 8:
            numbers = _rounded_to_odd(numbers)  # ml_dtypes would round twice, to float32 and from there
        elif dtype.numpy.kind != "f":
            numbers = numbers.astype(np.float32)  # of ml_dtypes: exact, and NumPy rounds from there
        found: NDArray[Any] = numbers.astype(target.numpy, copy=False)
    return found


def in_type(tensor: Tensor, target: DType) -> Tensor:
    """A tensor of floats in another type."""
    return Tensor(target, tensor.shape, converted(tensor.array, tensor.dtype, target))


def _rounded_to_odd(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """Float64 as float32, rounded to odd: what is rounded to fewer bits from there is as if it had been rounded once.

    Source: S. Boldo and G. Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
    to odd, IEEE Transactions on Computers 57 (2008).
    """
    nearest = numbers.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(numbers)  # towards zero
    bits |= nearest != numbers
    return nearest

"""A tensor of a request or a response: flat items, and a shape that is kept separately.

Items stay one-dimensional, because a shape may be valid for the operator but impossible for NumPy (rank 40, or [2**40,
2**40, 0]), and because kernels need flat buffers. Code that builds a `Tensor` must already have checked that the number
of items is the product of the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from numpy.typing import NDArray

from app.tensors.dtypes import DType

Form = Literal["flat", "nested", "whole"]


@dataclass(slots=True)
class Tensor:
    """A tensor. `array` holds prod(shape) items of `dtype` in row-major order: 1-D, contiguous, aligned, little-endian.

    The pointers locate the tensor in the request, for errors: `pointer` locates the values, `shape_pointer` the shape,
    and `dtype_pointer` the type. `form` says how an item is addressed below `pointer`: "flat" by its index, "nested" by
    its coordinates, or "whole" not at all (base64, binary).
    """

    dtype: DType
    shape: tuple[int, ...]
    array: NDArray[Any]
    pointer: str = ""
    form: Form = "flat"
    shape_pointer: str = ""
    dtype_pointer: str = ""

    @property
    def items(self) -> NDArray[Any]:
        """The items as kernels see them: an array of the type's carrier (see `DType`)."""
        return self.array.view(self.dtype.carrier)

    def gathered(self, shape: tuple[int, ...], carriers: NDArray[Any]) -> Tensor:
        """Return a tensor of this type, built from the output items of a kernel."""
        return Tensor(self.dtype, shape, carriers.view(self.dtype.numpy))

    def locate(self, item: int) -> str:
        """Return the JSON pointer of the item with index `item`, in the form that the request uses."""
        if self.form == "whole":
            return self.pointer
        if self.form == "flat":
            return f"{self.pointer}/{item}"
        return "/".join((self.pointer, *map(str, coordinates(item, self.shape))))


def coordinates(item: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of the item with row-major index `item` within `shape`, which must contain no 0."""
    position = []
    for size in reversed(shape):
        item, rest = divmod(item, size)
        position.append(rest)
    return tuple(reversed(position))


def nbytes(dtype: DType, shape: Sequence[int]) -> int:
    """Return the exact number of bytes in the items of `shape`, however large.

    A string counts as its 4-byte length prefix.
    """
    return prod(shape) * (dtype.item_size or 4)


def as_aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array` if it is contiguous and aligned, as kernels require, else a copy."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy()

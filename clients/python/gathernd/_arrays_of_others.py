"""Converts lists and other libraries' arrays (PyTorch, JAX, CuPy, `__array__`, DLPack); makes PyTorch tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ._array_bytes import ELEMENT_TYPES, Buffer, ElementType, EncodedTensor, check_size, encode, numpy_dtype

_IN_HOST_MEMORY: Final = (1, 3)
"""DLPack device types with host-readable memory: CPU and CUDA pinned memory."""
_FIRST_ROUNDED: Final = 2**53
"""Integers of this magnitude or more may be rounded in a float64."""


def as_array(value: Any) -> NDArray[Any]:
    """Convert `value` to a NumPy array. Shares memory if possible; arrays on a GPU are copied to the host.

    PyTorch tensors may require gradients. Raises ModuleNotFoundError if the type needs ml_dtypes and it is not
    installed.
    """
    if isinstance(value, np.ndarray):
        return value
    if _is_torch(value):
        return _torch_array(value)
    if hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) not in _IN_HOST_MEMORY:
        # CuPy arrays have `get`, which is needed for older versions of CuPy. Other libraries export a host copy through
        # DLPack.
        return np.asarray(value.get()) if hasattr(value, "get") else np.from_dlpack(value, device="cpu", copy=True)
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return array_of_lists(value)


def array_of_lists(value: Any) -> NDArray[Any]:
    """Like numpy.asarray, but the ValueError for unevenly nested lists says where they differ.

    Lists of str become object arrays.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        uneven = _first_uneven(value)
        if uneven is None:
            raise
        raise ValueError(uneven) from None
    if array.dtype.kind == "U" and has_no_type(value):
        # NumPy strings lose trailing NULs, and would convert numbers in the list to strings.
        return np.array(value, object)
    return array


def encode_value(value: Any) -> EncodedTensor:
    """Encode anything that `as_array` accepts; PyTorch's bfloat16 does not need ml_dtypes. Raises TypeError."""
    if _is_torch(value):
        element_type = _type_that_numpy_lacks(value)
        if element_type is not None:
            return EncodedTensor(element_type, tuple(value.shape), encode(_bits(value)).raw)
    return encode(as_array(value))


def as_indices(value: Any, widen: bool) -> NDArray[Any]:
    """Convert `value` to an array of indices; `widen` converts narrower integers to int64, as ONNX requires."""
    array = as_array(value)
    if not array.size and array.dtype.kind == "f" and not hasattr(value, "dtype"):
        array = array.astype(np.int64)  # an empty list has no type of its own
    if widen and array.dtype.kind in "iu" and array.dtype != np.int64 and np.can_cast(array.dtype, np.int64, "safe"):
        return array.astype(np.int64)
    return array


def has_no_type(value: Any) -> bool:
    """Return True if `value` is a plain Python number or list, which has no element type of its own."""
    return not any(hasattr(value, name) for name in ("dtype", "__array__", "__dlpack__"))


def as_type(value: Any, dtype: str) -> NDArray[Any]:
    """Convert a list or number to an array of the service's type `dtype`.

    Raises ValueError if that would change a value, except for rounding a float to a narrower float type.
    """
    array = array_of_lists(value)
    wanted = numpy_dtype(ELEMENT_TYPES[dtype])
    if wanted is None:
        return array
    if array.dtype.kind in "fc" and bool((np.abs(array) >= _FIRST_ROUNDED).any()):
        # If a list mixes integers with floats or exceeds int64, NumPy converts the integers to floats, and may round
        # them.
        return _numbers_as_type(np.array(value, object), wanted)
    if array.dtype == wanted:
        return array
    kept = False
    if array.dtype.kind in "biuf" or (array.dtype.kind == "c" and dtype.startswith("complex")):
        with np.errstate(all="ignore"):
            cast = array.astype(wanted)
            if array.dtype.kind in "fc" and dtype.startswith(("float", "bfloat", "complex")):
                kept = bool((np.isfinite(array) == np.isfinite(cast)).all())
            else:
                real = cast.real if cast.dtype.kind == "c" else cast
                kept = bool(((real.astype(array.dtype) == array) & ((real < 0) == (array < 0))).all())
    if not kept:
        raise _not_held(wanted)
    return cast


def _numbers_as_type(numbers: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:
    """Convert an object array of Python numbers to the type `wanted`.

    Raises ValueError if that would change an integer, or any value if `wanted` is an integer type.
    """
    try:
        with np.errstate(all="ignore"):
            cast = numbers.astype(wanted)
    except (OverflowError, TypeError, ValueError):
        raise _not_held(wanted) from None
    inexact = wanted.kind not in "biu"
    for number, held in zip(numbers.reshape(-1).tolist(), cast.reshape(-1).tolist(), strict=True):
        is_float = inexact and not isinstance(number, int | np.integer)
        if not (np.isfinite(number) == np.isfinite(held) if is_float else number == held):
            raise _not_held(wanted)
    return cast


def _not_held(wanted: np.dtype[Any]) -> ValueError:
    return ValueError(f"the tensor has items of {wanted.name}, which cannot hold every value of the list")


def _first_uneven(value: Any) -> str | None:
    """Describe the first place where nested lists differ in length. Returns None if there is none."""
    sizes: list[int | None] = []
    first = value
    while (size := _length(first)) is not None:
        sizes.append(size)
        if not size:
            break
        first = first[0]
    sizes.append(None)
    waiting = [(value, 0, "")]
    while waiting:
        entry, depth, place = waiting.pop()
        size, before = _length(entry), sizes[depth]
        if size != before:
            came = "a single item" if size is None else f"{size} item{'' if size == 1 else 's'}"
            expected = "a single item" if before is None else f"{before}"
            return f"the lists are not nested evenly: {came} at {place}, {expected} at {'[0]' * depth}"
        if size:
            waiting += [(one, depth + 1, f"{place}[{number}]") for number, one in reversed([*enumerate(entry)])]
    return None


def _length(entry: Any) -> int | None:
    """Return the length of a list, a tuple or an array; None for a single item."""
    return len(entry) if isinstance(entry, list | tuple) or getattr(entry, "ndim", None) else None


def decode_for_torch(element_type: ElementType, shape: Sequence[int], raw: Buffer) -> Any:
    """Decode `raw` to a PyTorch tensor that shares its memory. Raises TypeError for strings, which PyTorch does not
    have.
    """
    import torch  # noqa: PLC0415  (optional: whoever asks for its tensors has it)

    if element_type.name == "string":
        raise TypeError("PyTorch has no tensors of strings")
    check_size(element_type, shape, raw)
    dtype = getattr(torch, element_type.name)
    items = torch.frombuffer(raw, dtype=dtype) if len(raw) else torch.empty(0, dtype=dtype)
    return items.reshape(tuple(shape))


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _torch_array(tensor: Any) -> NDArray[Any]:
    """Convert a PyTorch tensor to an array. It may require gradients, be on a GPU or be a lazy conjugate."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    element_type = _type_that_numpy_lacks(plain)
    if element_type is None:
        found: NDArray[Any] = plain.numpy()
        return found
    dtype = numpy_dtype(element_type)
    assert dtype is not None
    return _bits(plain).view(dtype).reshape(tuple(plain.shape))


def _type_that_numpy_lacks(tensor: Any) -> ElementType | None:
    """Return the element type of a PyTorch tensor if NumPy has it only through ml_dtypes, else None."""
    found = ELEMENT_TYPES.get(str(tensor.dtype).removeprefix("torch."))
    return found if found is not None and found.numpy is None else None


def _bits(tensor: Any) -> NDArray[Any]:
    """Return the items of a PyTorch tensor as a 1-D array of integers of the same size, in row-major order."""
    torch = sys.modules["torch"]
    integers = torch.uint8 if tensor.element_size() == 1 else torch.int16
    found: NDArray[Any] = tensor.detach().cpu().reshape(-1).contiguous().view(integers).numpy()
    return found

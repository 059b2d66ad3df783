"""JSON values that are Python objects already, to tensors and back: exact, and slow for large arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.tensors.dtypes import DTYPES, DType
from app.tensors.tensor import Form, Tensor, coordinates
from app.wire.json_exact import Number, integer
from app.wire.packed import PackedItemError, PackedSizeError, bounded_product, check_packed, unpack

__all__ = ["Number", "integer"]
_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Bad(Exception):
    pass


def _nesting(values: Any) -> list[int]:
    dims = []
    while isinstance(values, list):
        dims.append(len(values))
        if not values:
            break
        values = values[0]
    return dims


def _follows(values: Any, dims: Sequence[int]) -> bool:
    if not dims:
        return not isinstance(values, list)
    return isinstance(values, list) and len(values) == dims[0] and all(_follows(value, dims[1:]) for value in values)


def _leaves(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for value in values:
            yield from _leaves(value)
    else:
        yield values


def _count(name: str, fields: dict[str, Any]) -> tuple[tuple[int, ...], Form]:
    """The shape of a tensor and the form of its values; raises element_count_mismatch."""
    dtype: DType = DTYPES[fields["dtype"]]
    if "base64" in fields:
        try:
            check_packed(dtype, fields["shape"], fields["base64"])
        except PackedSizeError as error:
            raise GatherError("element_count_mismatch", str(error), pointer=f"/{name}/base64") from None
        return fields["shape"], "whole"
    values, shape = fields["values"], fields.get("shape")
    pair = [2] if dtype.kind == "complex" else []
    dims = _nesting(values)
    wrong = GatherError("element_count_mismatch", "the values do not match the shape", pointer=f"/{name}/values")
    if shape is None:
        if not _follows(values, dims):
            raise wrong
        if pair and 0 not in dims:
            if not dims or dims[-1] != 2:
                raise wrong
            dims.pop()
        return tuple(dims), "flat" if len(dims) == 1 else "nested"
    count = bounded_product(shape, 2**63)
    rank, depth = len(shape), len(dims)
    if count == 0:
        zero = shape.index(0)
        if values == []:
            return shape, "flat"
        wanted, form = [*shape[: zero + 1]], "nested"
    elif depth == 1 + len(pair):
        wanted, form = [count, *pair], "flat"
    else:
        wanted, form = [*shape, *pair], "nested"
    if len(wanted) != depth or not _follows(values, wanted):
        raise wrong
    return shape, "nested" if rank == 0 and form == "nested" else form  # type: ignore[return-value]


def _tensor(name: str, fields: dict[str, Any], shape: tuple[int, ...], form: Form) -> Tensor:
    dtype: DType = DTYPES[fields["dtype"]]
    pointer = f"/{name}/base64" if "base64" in fields else f"/{name}/values"
    tensor = Tensor(dtype, shape, np.empty(0), pointer, form, f"/{name}/shape", f"/{name}/dtype")
    if "base64" in fields:
        try:
            tensor.array = unpack(dtype, fields["base64"])
        except PackedItemError as error:
            place = Place(pointer, coordinates(error.item, shape), error.value)
            raise GatherError("value_not_representable", str(error), places=[place]) from None
        return tensor
    width = 2 if dtype.kind == "complex" else 1
    made = []
    for number, leaf in enumerate(_leaves(fields["values"])):
        try:
            made.append(_item(dtype, leaf))
        except _Bad:
            item, part = divmod(number, width)
            where = tensor.locate(item) + (f"/{part}" if width == 2 else "")
            place = Place(where, coordinates(item, shape), _shown(leaf))
            raise GatherError(
                "value_not_representable", f"{name} has a value that {dtype.name} cannot hold", places=[place]
            ) from None
    tensor.array = _array(dtype, made)
    return tensor


def _shown(leaf: Any) -> int | float | str | None:
    """A value for an error's body: what JSON with 64-bit integers can say, the text of other numbers."""
    if isinstance(leaf, Number):
        if re.fullmatch("-?[0-9]+", leaf):
            if len(leaf) < 25 and -(2**63) <= int(leaf) < 2**64:
                return int(leaf)
        elif not isinf(float(leaf)):
            return float(leaf)
        return leaf if len(leaf) <= 64 else leaf[:64] + "…"
    if isinstance(leaf, str):
        text = leaf.encode("utf-8", "replace").decode()
        return text if len(text) <= 64 else text[:64] + "…"
    return leaf if isinstance(leaf, bool) else None


def _item(dtype: DType, leaf: Any) -> Any:
    if dtype.kind == "bool":
        if isinstance(leaf, bool):
            return leaf
    elif dtype.kind == "string":
        if type(leaf) is str:
            try:
                leaf.encode()
            except UnicodeEncodeError:
                raise _Bad from None
            return leaf
    elif type(leaf) is Number:
        if dtype.kind in ("int", "uint"):
            value: Any = int(leaf) if re.fullmatch("-?[0-9]{1,400}", leaf) else float(leaf)
            if not isinf(value) and int(value) == value and dtype.low <= value <= dtype.high:
                return int(value)
        else:
            value = float(leaf)
            if not isinf(value) and not isinf(_narrow(dtype, value)):
                return value
    elif type(leaf) is str and dtype.kind in ("float", "complex") and leaf in _NONFINITE:
        return _NONFINITE[leaf]
    raise _Bad


def _narrow(dtype: DType, value: float) -> float:
    return float(_floats(dtype, np.array([value]))[0].real)


def _floats(dtype: DType, values: NDArray[np.float64]) -> NDArray[Any]:
    if dtype.name == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        if dtype.name == "complex64":
            return values.astype(np.float32)
        return values.astype("f8" if dtype.name == "complex128" else dtype.numpy)


def to_bfloat16(values: NDArray[np.float64]) -> NDArray[Any]:
    """`values` rounded once, half to even: through the float32 rounded to odd, which loses nothing."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    bits = near.view(np.uint32).copy()
    inexact = (near != values) & np.isfinite(near) & np.isfinite(values)
    away = inexact & (np.abs(near.astype(np.float64)) > np.abs(values))
    bits[away] -= 1
    bits[inexact] |= 1
    over = np.isinf(near) & np.isfinite(values)
    bits[over] = (bits[over] & 0x80000000) | 0x7F7FFFFF
    nan = np.isnan(values)
    top = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    top[nan] = 0x7FC0
    return top.astype(np.uint16).view(ml_dtypes.bfloat16)


def _array(dtype: DType, made: list[Any]) -> NDArray[Any]:
    if dtype.kind in ("float", "complex"):
        return _floats(dtype, np.array(made, np.float64)).view(dtype.numpy)
    array: NDArray[Any] = np.empty(len(made), dtype.numpy)
    array[:] = made
    return array


def _listed(dtype: DType, array: NDArray[Any]) -> list[Any]:
    if dtype.kind == "complex":
        part = DTYPES["float32" if dtype.item_size == 8 else "float64"]
        parts = _listed(part, array.view(part.numpy))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if dtype.kind == "float":
        single = dtype.item_size == 4
        values = [float(str(value)) for value in array] if single else array.astype(np.float64).tolist()
        return [
            value if np.isfinite(value) else "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            for value in values
        ]
    return array.tolist()  # type: ignore[no-any-return]

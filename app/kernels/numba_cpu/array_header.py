"""Arrays of NumPy's as compiled kernels meet them: by the address of the array's object, whose header they read.

Numba's own arrays copy that header for each call, count references, ask for one type of item, and have every call look
up its types: a microsecond, where a small gather takes a tenth of that. What its types would have refused the kernel
refuses itself: `is_array` comes first, since the header of any other object is something else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types

from app.compilation.decorators import inlined
from app.compilation.intrinsics import Address, Builder, intrinsic

ArrayHeader: TypeAlias = object
"""What Python hands over as it is, an array if it is what it should be."""

_extending: Any = numba.extending
_INT64: Final = ir.IntType(64)


class _Header(types.Type):
    """An array by the address of its object."""

    def __init__(self) -> None:
        super().__init__(name="ArrayHeader")


header: Final = _Header()


@_extending.register_model(_Header)
class _HeaderModel(_extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _INT64)


@_extending.unbox(_Header)  # type: ignore[untyped-decorator]
def _unbox_header(kind: Any, found: Any, context: Any) -> Any:
    return _extending.NativeValue(context.builder.ptrtoint(found, _INT64))


# NumPy's PyArrayObject_fields, in bytes from the object's address; the type's own address ends every object's header.
_DATA: Final = object.__basicsize__
_TYPE: Final = _DATA - 8
_AXES: Final = _DATA + 8
_SHAPE: Final = _DATA + 16
_STRIDES: Final = _DATA + 24
_DTYPE: Final = _DATA + 40
_FLAGS: Final = _DATA + 48
# NumPy's PyArray_Descr, likewise.
_KIND: Final = object.__basicsize__ + 8
_ORDER: Final = _KIND + 2
_ITEM_SIZE: Final = object.__basicsize__ + 24
_CONTIGUOUS: Final = 0x1
_ALIGNED: Final = 0x100
_WRITABLE: Final = 0x400


def check_layout() -> None:
    """Raises RuntimeError if arrays are not laid out as the compiled code takes them to be."""
    array = np.zeros((3, 5), ">c8")
    array.flags.writeable = False

    def read(kind: Any, *path: int) -> Any:
        place = id(array)
        for step in path[:-1]:
            place = ctypes.c_int64.from_address(place + step).value
        return kind.from_address(place + path[-1]).value

    whole, half, letter = ctypes.c_int64, ctypes.c_int32, ctypes.c_char
    expected: tuple[tuple[Any, Any, tuple[int, ...]], ...] = (
        (id(np.ndarray), whole, (_TYPE,)),
        (array.ctypes.data, whole, (_DATA,)),
        (2, half, (_AXES,)),
        (5, whole, (_SHAPE, 8)),
        (40, whole, (_STRIDES, 0)),
        (id(array.dtype), whole, (_DTYPE,)),  # before it is followed
        (b"c", letter, (_DTYPE, _KIND)),
        (b">", letter, (_DTYPE, _ORDER)),
        (8, whole, (_DTYPE, _ITEM_SIZE)),
    )
    flags = _CONTIGUOUS | _ALIGNED
    if not all(read(kind, *path) == value for value, kind, path in expected) or (
        read(half, _FLAGS) & (flags | _WRITABLE) != flags
    ):
        raise RuntimeError("this build of NumPy or Python lays arrays out in a way that the kernel does not know")


def _reader(offset: int, bits: int, *path: int) -> Callable[[ArrayHeader], int]:
    """An intrinsic that reads an integer of the header, or, by `path`, of what the header points to."""
    kind = ir.IntType(bits)

    def build(builder: Builder, array: Any) -> Any:
        place = builder.add(array, _INT64(offset))
        for step in path:
            place = builder.load(builder.inttoptr(place, _INT64.as_pointer()), typ=_INT64)
            place = builder.add(place, _INT64(step))
        value = builder.load(builder.inttoptr(place, kind.as_pointer()), typ=kind)
        return value if bits == 64 else builder.zext(value, _INT64)

    read: Callable[[ArrayHeader], int] = intrinsic(types.int64, (header,), build)
    return read


address: Final[Callable[[ArrayHeader], Address]] = _reader(_DATA, 64)
"""The address of the first item."""
length: Final = _reader(_SHAPE, 64, 0)
"""How many items there are along the first axis, of which there must be one."""
_type = _reader(_TYPE, 64)
_axes = _reader(_AXES, 32)
_flags = _reader(_FLAGS, 32)
_step = _reader(_STRIDES, 64, 0)
_kind = _reader(_DTYPE, 8, _KIND)
_order = _reader(_DTYPE, 8, _ORDER)
_item_size = _reader(_DTYPE, 64, _ITEM_SIZE)
_SIGNED: Final = ord("i")
_UNSIGNED: Final = ord("u")
_COMPLEX: Final = ord("c")
_BIG_ENDIAN: Final = ord(">")


@inlined
def is_array(array: ArrayHeader, array_type: Address) -> bool:
    """Whether it is an array, of which `array_type` is the address of the type, with one axis and without gaps."""
    if _type(array) != array_type or _axes(array) != 1 or _flags(array) & _CONTIGUOUS == 0:
        return False
    return length(array) < 2 or _step(array) == _item_size(array)


@inlined
def holds_carriers(array: ArrayHeader, item_size: int) -> bool:
    """Whether its items have that size and a carrier's type, so that their bytes may be copied as they are."""
    kind = _kind(array)
    fit = kind in (_UNSIGNED, _COMPLEX) and _order(array) != _BIG_ENDIAN
    return fit and _item_size(array) == item_size


@inlined
def index_type(array: ArrayHeader) -> int:
    """The bytes of its items, which are integers, negative where these are unsigned; 0 where it cannot hold indices."""
    if _flags(array) & _ALIGNED == 0 or _order(array) == _BIG_ENDIAN:
        return 0
    size = _item_size(array)
    kind = _kind(array)
    return size if kind == _SIGNED else (-size if kind == _UNSIGNED else 0)


@inlined
def is_writable(array: ArrayHeader) -> bool:
    """Whether its items may be changed."""
    return _flags(array) & _WRITABLE != 0


@inlined
def index_type_if_usable(
    data: ArrayHeader, indices: ArrayHeader, out: ArrayHeader, item_size: int, array_type: Address
) -> int:
    """The `index_type` of a kernel's indices, or 0 where one of its arrays is of a kind that it does not take."""
    if not (is_array(data, array_type) and is_array(indices, array_type) and is_array(out, array_type)):
        return 0
    if not (holds_carriers(data, item_size) and holds_carriers(out, item_size) and is_writable(out)):
        return 0
    return index_type(indices)


def _checked_product(builder: Builder, first: Any, second: Any) -> Any:
    pair = builder.smul_with_overflow(first, second)
    overflow, value = builder.extract_value(pair, 1), builder.extract_value(pair, 0)
    return builder.select(overflow, _INT64(-1), value)


checked_product: Final[Callable[[int, int], int]] = intrinsic(types.int64, (types.int64, types.int64), _checked_product)
"""The product of sizes, or something negative where it exceeds an int64 or a factor was such a product.

A factor of 0 makes 0 of everything, as it should.
"""

"""Access to NumPy arrays from compiled code: the code receives the address of the array object and reads the object's
header.

With its own array type, Numba copies that header on each call, counts references, fixes the item type, and looks up the
argument types. That takes a microsecond, ten times as long as a small gather. Without that array type, compiled code or
its caller must check the types. If an object may not be an array, call `is_array` first, because other objects have
different headers.

To pass any number of arrays, pass a tuple: `item_of` returns its items. The caller must keep the tuple alive until the
call returns.
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
"""An object passed unchanged from Python. It is an array only if `is_array` returns True."""
Objects: TypeAlias = tuple[Any, ...]
"""A tuple passed unchanged from Python. It may be a named tuple."""

_extending: Any = numba.extending
_INT64: Final = ir.IntType(64)


class _Header(types.Type):
    """Numba type: an array, represented by the address of its object."""

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


# Offsets in NumPy's PyArrayObject_fields, in bytes from the object's address. The type's address is the last word of
# every object's header.
_DATA: Final = object.__basicsize__
_TYPE: Final = _DATA - 8
_AXES: Final = _DATA + 8
_SHAPE: Final = _DATA + 16
_STRIDES: Final = _DATA + 24
_DTYPE: Final = _DATA + 40
_FLAGS: Final = _DATA + 48
# Offsets in PyTupleObject.
_COUNT: Final = object.__basicsize__
_ITEMS: Final = tuple.__basicsize__
# Offsets in NumPy's PyArray_Descr.
_KIND: Final = object.__basicsize__ + 8
_ORDER: Final = _KIND + 2
_ITEM_SIZE: Final = object.__basicsize__ + 24
_CONTIGUOUS: Final = 0x1
_ALIGNED: Final = 0x100
_WRITABLE: Final = 0x400


def check_layout() -> None:
    """Check that arrays and tuples have the memory layout that compiled code expects. Raises RuntimeError if not."""
    array = np.zeros((3, 5), ">c8")
    array.flags.writeable = False
    both = (None, array)

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
        (id(array.dtype), whole, (_DTYPE,)),  # checked before the pointer is followed
        (b"c", letter, (_DTYPE, _KIND)),
        (b">", letter, (_DTYPE, _ORDER)),
        (8, whole, (_DTYPE, _ITEM_SIZE)),
    )
    flags = _CONTIGUOUS | _ALIGNED
    whole_tuple = [whole.from_address(id(both) + place).value for place in (_COUNT, _ITEMS + 8)]
    if (
        whole_tuple != [2, id(array)]
        or not all(read(kind, *path) == value for value, kind, path in expected)
        or (read(half, _FLAGS) & (flags | _WRITABLE) != flags)
    ):
        raise RuntimeError("this build of NumPy or Python lays arrays or tuples out in an unknown way")


def _reader(offset: int, bits: int, *path: int) -> Callable[[ArrayHeader], int]:
    """Build an intrinsic that reads an integer from the header or, with `path`, through the header's pointers."""
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
"""Return the address of the first item."""
length: Final = _reader(_SHAPE, 64, 0)
"""Return the number of items along the first axis. The array must have an axis."""
count_of: Final[Callable[[Objects], int]] = _reader(_COUNT, 64)
"""Return the number of items of a tuple."""
item_of: Final[Callable[[Objects, int], Any]] = intrinsic(
    header,
    (header, types.int64),
    lambda builder, items, number: builder.load(
        builder.inttoptr(
            builder.add(builder.add(items, _INT64(_ITEMS)), builder.mul(number, _INT64(8))), _INT64.as_pointer()
        ),
        typ=_INT64,
    ),
)
"""Return the item of a tuple with index `number`."""
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
    """Return whether the object is a contiguous 1-D array. `array_type` is the address of `numpy.ndarray`."""
    if _type(array) != array_type or _axes(array) != 1 or _flags(array) & _CONTIGUOUS == 0:
        return False
    return length(array) < 2 or _step(array) == _item_size(array)


@inlined
def holds_carriers(array: ArrayHeader, item_size: int) -> bool:
    """Return whether the items have this size and a carrier type, so that their bytes can be copied."""
    kind = _kind(array)
    fit = kind in (_UNSIGNED, _COMPLEX) and _order(array) != _BIG_ENDIAN
    return fit and _item_size(array) == item_size


@inlined
def index_type(array: ArrayHeader) -> int:
    """Return the number of bytes per item, negated for unsigned integers, or 0 if the array cannot hold indices."""
    if _flags(array) & _ALIGNED == 0 or _order(array) == _BIG_ENDIAN:
        return 0
    size = _item_size(array)
    kind = _kind(array)
    return size if kind == _SIGNED else (-size if kind == _UNSIGNED else 0)


@inlined
def is_writable(array: ArrayHeader) -> bool:
    """Return whether the array is writable."""
    return _flags(array) & _WRITABLE != 0


@inlined
def index_type_if_usable(
    data: ArrayHeader, indices: ArrayHeader, out: ArrayHeader, item_size: int, array_type: Address
) -> int:
    """Return the `index_type` of a kernel's indices, or 0 if the kernel does not accept one of the arrays."""
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
"""Return the product of two sizes, or a negative number if the product overflows int64 or a factor is already negative.

If a factor is 0, the product is 0, even after an overflow.
"""

"""Arrays of NumPy's as compiled kernels meet them: by the address of the array's object, whose header they read.

Numba's own arrays copy that header for each call, count references, ask for one type of item, and have every call look
up its types: a microsecond, where a small gather takes a tenth of that. What its types would have refused the kernel
refuses itself, by `is_plain` and `is_writable`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types

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


# NumPy's PyArrayObject_fields, in bytes from the object's address.
_DATA: Final = object.__basicsize__
_AXES: Final = _DATA + 8
_SHAPE: Final = _DATA + 16
_STRIDES: Final = _DATA + 24
_FLAGS: Final = _DATA + 48
_CONTIGUOUS: Final = 0x1
_ALIGNED: Final = 0x100
_WRITABLE: Final = 0x400


def check_layout() -> None:
    """Raises RuntimeError where arrays are not laid out as the compiled code takes them to be."""
    array = np.zeros((3, 5), np.uint16)
    array.flags.writeable = False

    def read(kind: Any, *path: int) -> int:
        place = id(array)
        for step in path[:-1]:
            place = ctypes.c_int64.from_address(place + step).value
        found: int = kind.from_address(place + path[-1]).value
        return found

    found = (
        read(ctypes.c_int64, _DATA),
        read(ctypes.c_int32, _AXES),
        read(ctypes.c_int64, _SHAPE, 8),
        read(ctypes.c_int64, _STRIDES, 0),
        read(ctypes.c_int32, _FLAGS) & (_CONTIGUOUS | _ALIGNED | _WRITABLE),
    )
    if found != (array.ctypes.data, 2, 5, 10, _CONTIGUOUS | _ALIGNED):
        raise RuntimeError("this build of NumPy or Python lays arrays out in a way that the kernel does not know")


def _reader(offset: int, bits: int, through: bool) -> Any:
    """An intrinsic that reads an integer of the header, or the first of those that the header points to."""

    @_extending.intrinsic
    def reader(typing_context, array):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.add(arguments[0], _INT64(offset))
            if through:
                place = builder.load(builder.inttoptr(place, _INT64.as_pointer()), typ=_INT64)
            kind = ir.IntType(bits)
            value = builder.load(builder.inttoptr(place, kind.as_pointer()), typ=kind)
            return value if bits == 64 else builder.zext(value, _INT64)

        return types.int64(header), generate

    return reader


# The address of the first item, and how many there are along the first axis, of which there must be one.
address = _reader(_DATA, 64, False)
length = _reader(_SHAPE, 64, True)
_axes = _reader(_AXES, 32, False)
_flags = _reader(_FLAGS, 32, False)
_step = _reader(_STRIDES, 64, True)


@_extending.register_jitable
def is_plain(array, item_size):  # type: ignore[no-untyped-def]
    """Whether it has one axis, without gaps, and items of that size, as far as two of them show it."""
    if _axes(array) != 1 or _flags(array) & _CONTIGUOUS == 0:
        return False
    return length(array) < 2 or _step(array) == item_size


@_extending.register_jitable
def is_aligned(array):  # type: ignore[no-untyped-def]
    """Whether its items lie at multiples of their size."""
    return _flags(array) & _ALIGNED != 0


@_extending.register_jitable
def is_writable(array):  # type: ignore[no-untyped-def]
    """Whether its items may be changed."""
    return _flags(array) & _WRITABLE != 0

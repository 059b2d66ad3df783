"""Packed items: a tensor's row-major little-endian bytes, as in base64, raw bodies and binary formats.

A bool is one byte, 0 or 1. Strings use the BYTES framing of the inference protocol: each is a little-endian uint32
length, followed by UTF-8. They are not copied (see `PackedStrings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.string_frames import CUT_LENGTH, HEAD, WHOLE, read_frames
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates

_BYTE: Final = np.dtype(np.uint8)
_NO_BYTES: Final[NDArray[np.uint8]] = np.empty(0, _BYTE)
_NO_STARTS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
_PORTION: Final = 1 << 20
_FEW: Final = 8
"""Number of sizes whose product is still a short integer: at most 504 bits."""


BOOL_HINT: Final = "Send each bool as one byte, 0 or 1."
UTF8_HINT: Final = "Send each string in UTF-8."


def view_of(raw: Buffer) -> NDArray[np.uint8]:
    """View `raw` as the only array type that compiled functions accept."""
    view = np.frombuffer(raw, _BYTE) if len(raw) else _NO_BYTES
    if type(raw) is not bytes:  # a view of bytes is already read-only
        view.flags.writeable = False
    return view


def packed_size_hint(dtype: DType, shape: Sequence[int], given: int) -> str:
    """Return the hint for `given` packed bytes that do not match `shape`."""
    count = bounded_product(shape, 2**63)
    if count >= 2**63 or dtype.kind == "string":
        asked = f"{items_text(shape)} of {dtype.name}"
    else:
        asked = f"{count * dtype.item_size} bytes for {count} items of {dtype.name}"
    if dtype.kind == "string":
        return f"Send {asked}, each behind the number of its bytes in 4 bytes."
    fits, rest = divmod(given, dtype.item_size)
    other = "" if rest else f", or change the shape to match the {fits} items received"
    return f"Send {asked}{other}."


def unpack(
    dtype: DType,
    shape: tuple[int, ...],
    raw: Buffer,
    memory: Memory = UNCOUNTED,
    name: str = "",
    pointers: tuple[str, str, str] = ("", "", ""),
) -> Tensor:
    """Build the tensor `name` from packed bytes. `pointers` locate its items, shape and type.

    The tensor's array shares the memory of `raw` if that is aligned; the octets of strings always share it. Copies are
    charged to `memory`. Raises element_count_mismatch and value_not_representable. Errors of `memory.charge` propagate.
    """
    if dtype.kind == "string":
        return _unpack_strings(dtype, shape, raw, memory, name, pointers)
    if bounded_product(shape, len(raw) + 1) * dtype.item_size != len(raw):
        what = f"{len(raw)} bytes were sent, but the shape requires {items_text(shape)} of {dtype.name}"
        raise _wrong_size(dtype, shape, name, pointers[0], what, len(raw))
    items: NDArray[Any] = np.frombuffer(raw, dtype.numpy) if len(raw) else np.empty(0, dtype.numpy)
    if dtype.kind == "bool":
        octets = items.view(np.uint8)
        item = first_invalid_bool(octets)
        if item >= 0:
            place = Place(pointers[0], coordinates(item, shape), int(octets[item]))
            raise _wrong_item(name, "a bool is one byte, 0 or 1", place, BOOL_HINT)
    if not items.flags.aligned:
        memory.charge(items.nbytes)
        items = items.copy()
    pointer, shape_pointer, dtype_pointer = pointers
    return Tensor(dtype, shape, items, pointer, "whole", shape_pointer, dtype_pointer)


def _wrong_size(dtype: DType, shape: tuple[int, ...], name: str, pointer: str, what: str, given: int) -> GatherError:
    """Return the error for `given` packed bytes that do not match the shape."""
    hint = packed_size_hint(dtype, shape, given)
    return GatherError("element_count_mismatch", _describe_part(name, what), pointer=pointer, hint=hint)


def _wrong_item(name: str, what: str, place: Place, hint: str) -> GatherError:
    """Return the error for an item that its type cannot represent."""
    return GatherError("value_not_representable", _describe_part(name, what), places=[place], hint=hint)


def _describe_part(name: str, what: str) -> str:
    return f"{name}: {what}" if name else what


def first_invalid_bool(octets: NDArray[np.uint8]) -> int:
    """Return the position of the first byte other than 0 and 1, or -1."""
    if octets.max(initial=0) > 1:
        for start in range(0, len(octets), _PORTION):
            wrong = octets[start : start + _PORTION] > 1
            if wrong.any():
                return start + int(wrong.argmax())
    return -1


def packed_bytes(tensor: Tensor, memory: Memory = UNCOUNTED) -> memoryview:
    """Return the packed bytes of a tensor. Strings are packed into new memory, which is charged to `memory` first.

    Raises tensor_damaged. Errors of `memory.charge` propagate.
    """
    if isinstance(tensor, PackedStrings):
        return tensor.packed(memory.charge)
    octets: NDArray[np.uint8] = tensor.array.view(_BYTE)
    return octets.data


def bounded_product(shape: Sequence[int], bound: int) -> int:
    """Return prod(shape) if it is less than `bound`, else any number >= `bound`. Never computes huge integers."""
    if len(shape) <= _FEW:
        return prod(shape)
    if 0 in shape:
        return 0
    product = 1
    for size in shape:
        product *= size
        if product >= bound:
            return product
    return product


def items_text(shape: Sequence[int]) -> str:
    """Return the number of items of `shape` as text for an error. Very long numbers are not written out."""
    count = bounded_product(shape, 2**63)
    return f"{count} items" if count < 2**63 else "more than 2^63 items"


def _unpack_strings(
    dtype: DType, shape: tuple[int, ...], raw: Buffer, memory: Memory, name: str, pointers: tuple[str, str, str]
) -> PackedStrings:
    wanted = min(bounded_product(shape, len(raw) + 1), len(raw) + 1)
    room = min(wanted, len(raw) // HEAD)  # `raw` cannot hold more frames
    memory.charge(_NO_STARTS.itemsize * room)
    starts = np.empty(room, np.int64)
    octets = view_of(raw)
    count, fault, wrong = read_frames.run(octets, wanted, starts)
    pointer, shape_pointer, dtype_pointer = pointers
    what = ""
    if fault != WHOLE:
        what = f"{'the length before string' if fault == CUT_LENGTH else 'string'} {count} ends early"
    elif count != wanted:
        found = f"more than {wanted}" if count > wanted else str(count)
        what = f"{found} strings are given, but the shape requires {wanted}"
    if what:
        raise _wrong_size(dtype, shape, name, pointer, what, len(raw))
    if wrong >= 0:
        raise _wrong_item(name, "a string is not UTF-8", Place(pointer, coordinates(wrong, shape)), UTF8_HINT)
    return PackedStrings(dtype, shape, starts, pointer, "whole", shape_pointer, dtype_pointer, octets=octets)

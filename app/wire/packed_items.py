"""Packed items: a tensor's row-major little-endian bytes, as base64, raw bodies and binary formats carry them.

bool is one byte, 0 or 1; strings are the inference protocol's BYTES framing, a little-endian uint32 length before the
UTF-8 of each. The errors raised here know neither request nor pointer: the caller adds the place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack_into
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import Code
from app.tensors.dtypes import DType
from app.tensors.packed_strings import AT_ONCE, Memory, framed_size
from app.tensors.tensor import aligned
from app.wire import decode_strings as texts_of

Buffer = bytes | bytearray | memoryview
Charge = Callable[[int], None]
"""Told how many bytes will be taken next; raises GatherError of a code in REFUSED_BY_CHARGE where there is no room."""
REFUSED_BY_CHARGE: Final[frozenset[Code]] = frozenset(("overloaded", "payload_too_large"))
_BYTE: Final = np.dtype(np.uint8)
_NO_BYTES: Final[NDArray[np.uint8]] = np.empty(0, _BYTE)
_PORTION: Final = 1 << 20


class PackedSizeError(Exception):
    """The number of bytes or strings is not what the shape asks for; the text says how."""


class PackedItemError(Exception):
    """Item number `item` is not one its type can hold; `value` is the offending byte, None for a string."""

    def __init__(self, detail: str, item: int, value: int | None) -> None:
        super().__init__(detail)
        self.item = item
        self.value = value


def view_of(raw: Buffer) -> NDArray[np.uint8]:
    """`raw` as compiled functions take it: they are compiled for one type of array, whatever holds the bytes."""
    view = np.frombuffer(raw, _BYTE) if len(raw) else _NO_BYTES
    view.flags.writeable = False
    return view


def check_packed(dtype: DType, shape: Sequence[int], raw: Buffer) -> None:
    """Raises PackedSizeError unless `raw` is as long as `shape` asks for; strings are counted by their framing."""
    wanted = bounded_product(shape, len(raw) + 1)
    if dtype.kind == "string":
        _check_framing(min(wanted, len(raw) + 1), raw)
    elif wanted * dtype.item_size != len(raw):
        raise PackedSizeError(f"{len(raw)} bytes are given and {items_text(shape)} of {dtype.name} are asked for")


def unpack(dtype: DType, raw: Buffer, charge: Charge | None = None) -> NDArray[Any]:
    """The items of `raw`, which `check_packed` has passed, as a flat array. Raises PackedItemError.

    The array shares the memory of `raw` where it is aligned. `charge` is told what it takes otherwise, in bytes, before
    it does; what that raises is raised.
    """
    if dtype.kind == "string":
        return _unpack_strings(raw, charge)
    items: NDArray[Any] = np.frombuffer(raw, dtype.numpy) if len(raw) else np.empty(0, dtype.numpy)
    if dtype.kind == "bool" and len(raw):
        octets = items.view(np.uint8)
        item = first_no_bool(octets)
        if item >= 0:
            raise PackedItemError("a bool is one byte, 0 or 1", item, int(octets[item]))
    if charge is not None and not items.flags.aligned:
        charge(items.nbytes)
    return aligned(items)


def first_no_bool(octets: NDArray[np.uint8]) -> int:
    """Number of the first byte that is neither 0 nor 1, or -1."""
    if octets.max(initial=0) > 1:
        for start in range(0, len(octets), _PORTION):
            wrong = octets[start : start + _PORTION] > 1
            if wrong.any():
                return start + int(wrong.argmax())
    return -1


def longest_string(array: NDArray[Any], limit: int) -> int:
    """Number of the first string of `array` with more than `limit` bytes of UTF-8, or -1."""
    for start in range(0, array.size, AT_ONCE):
        some = array[start : start + AT_ONCE]
        if 4 * max(map(len, some)) <= limit:
            continue
        for item, text in enumerate(some, start):
            if 4 * len(text) > limit and len(text.encode()) > limit:
                return item
    return -1


def pack_items(strings: NDArray[Any], memory: Memory | None = None) -> bytearray:
    """The packed bytes of a flat array of strings, which `memory` is charged with. Raises what charging raises."""
    size = sum(map(framed_size, strings))
    if memory is not None:
        memory.charge(size)
    packed = bytearray(size)
    place = 0
    for text in strings:
        octets = text.encode()
        pack_into("<I", packed, place, len(octets))
        start = place + 4
        place = start + len(octets)
        packed[start:place] = octets
    return packed


def bounded_product(shape: Sequence[int], bound: int) -> int:
    """prod(shape) where that is less than `bound`, else some number of `bound` or more; never a huge one."""
    if 0 in shape:
        return 0
    product = 1
    for size in shape:
        product *= size
        if product >= bound:
            return product
    return product


def items_text(shape: Sequence[int]) -> str:
    """How many items `shape` has, for an error's detail; no number of absurd length is ever written out."""
    count = bounded_product(shape, 2**63)
    return f"{count} items" if count < 2**63 else "more than 2^63 items"


def _check_framing(wanted: int, raw: Buffer) -> None:
    count, fault = texts_of.framed(view_of(raw), wanted)
    if fault:
        which = "the length before string" if fault == 1 else "string"
        raise PackedSizeError(f"{which} {count} ends early")
    if count != wanted:
        found = f"more than {wanted}" if count > wanted else str(count)
        raise PackedSizeError(f"{found} strings are given and the shape asks for {wanted}")


def _unpack_strings(raw: Buffer, charge: Charge | None) -> NDArray[Any]:
    if charge is not None:
        charge(len(raw))
    texts = np.empty(len(raw), _BYTE)
    used, count, fine = texts_of.separated(view_of(raw), texts)
    if not fine:
        raise PackedItemError("a string is not UTF-8", count, None)
    return texts_of.objects(texts[:used], count, charge)

"""Items of an input in the fields of `InferTensorContents`: repeated numbers and strings to packed items.

proto3 packs numbers: a field's value is the items one after the other, varints, or little-endian floats, which are
packed items already. A number on its own, which a sender may write too, is read as a field of one item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.tensor import coordinates
from app.wire.little_endian_items import Charge, bounded_product, items_text, view_of
from app.wire.protobuf_fields import malformed
from app.wire.v2_request_json import Input

FIELDS: Final = (
    "", "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents",
    "fp64_contents", "bytes_contents",
)  # fmt: skip
"""The names of the fields, by their numbers."""
STRINGS: Final = 8
MOST_CHUNKS: Final = 1 << 12
"""So many times a field of numbers may occur in a tensor; senders write it once."""
VARINTS: Final = frozenset(range(1, 6))
"""The numbers of the fields of varints."""
FLOATS: Final = {6: 4, 7: 8}
"""Bytes of an item in the fields of floats."""
FIELD_OF: Final = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
    "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
_PORTION: Final = 1 << 16
_LONGEST: Final = 10
_SMALL: Final = 1 << 8
"""Bytes of numbers that are counted by Python: for a few, a call of NumPy's takes longer."""
_GOING_ON: Final = bytes(range(0x80, 0x100))
"""The bytes of varints that are not the last one."""
Contents = Mapping[int, Sequence[Buffer]]
"""The values of the fields of a tensor's contents, by number: mostly one; of strings their `Frames`."""


class Frames(bytearray):
    """Strings as packed items, each behind its length, and how many there are."""

    strings = 0

    def add_framed(self, frames: memoryview, count: int) -> None:
        """So many strings more, which are in frames."""
        self += frames
        self.strings += count

    def add(self, text: Buffer) -> None:
        """One more string."""
        self += len(text).to_bytes(4, "little")
        self += text
        self.strings += 1


def place_of(field: int) -> str:
    """Where within an input the items of a field are, "" for those of none."""
    return f"/contents/{FIELDS[field]}" if field else ""


def check_field(one: Input, contents: Contents) -> int:
    """The number of the field that has the items of `one`. Raises invalid_field where another one has some."""
    wanted = FIELD_OF.get(one.datatype, 0)
    if len(contents) == 1 and wanted in contents:  # as of most
        return wanted
    for number, values in contents.items():
        if number != wanted and any(len(value) for value in values):
            pointer = one.pointer + place_of(number)
            if not wanted:
                raise invalid_field(
                    pointer,
                    f"items of {one.datatype} have no field in contents",
                    f"Send the items of {one.datatype} in raw_input_contents, and with them those of all inputs.",
                )
            detail = f"items of {one.datatype} stand in {FIELDS[wanted]}"
            raise invalid_field(pointer, detail, f"Send the items in {FIELDS[wanted]}.")
    return wanted


def count_items(field: int, values: Sequence[Buffer]) -> int:
    """How many items a field has. Raises malformed_request."""
    if field == STRINGS:
        return sum(value.strings for value in values if isinstance(value, Frames))
    count = 0
    for value in values:
        if field in FLOATS:
            items, rest = divmod(len(value), FLOATS[field])
            if rest:
                raise malformed(f"{FIELDS[field]} has {len(value)} bytes, no whole number of items")
            count += items
        elif 0 < len(value) <= _SMALL:
            octets = bytes(value)
            if octets[-1] >= 0x80:
                raise _endless(field)
            count += len(octets.translate(None, _GOING_ON))
        elif len(value):
            view = view_of(value)
            if view[-1] >= 0x80:
                raise _endless(field)
            count += sum(int(np.count_nonzero(view[at : at + _PORTION] < 0x80)) for at in range(0, len(view), _PORTION))
    return count


def _endless(field: int) -> GatherError:
    return malformed(f"the last number of {FIELDS[field]} does not end")


def check_count(one: Input, field: int, count: int) -> None:
    """Raises element_count_mismatch where the shape asks for another number of items."""
    if bounded_product(one.shape, count + 1) != count:
        raise GatherError(
            "element_count_mismatch",
            f"{one.name}: {count} items are given and {items_text(one.shape)} are asked for by the shape",
            pointer=one.pointer + place_of(field),
            hint=f"Send {items_text(one.shape)} in {FIELDS[field]}, or make the shape fit the {count} that came.",
        )


def pack(one: Input, field: int, values: Sequence[Buffer], count: int, charge: Charge | None) -> Buffer:
    """The items as packed bytes; `charge` is told what they take. Raises value_not_representable, malformed_request."""
    assert one.dtype is not None
    if field == STRINGS:
        if charge is not None:
            charge(sum(map(len, values)))
        return values[0] if values else b""
    if field in FLOATS and len(values) == 1:
        return values[0]
    if charge is not None:
        charge(2 * count * (one.dtype.item_size or 1))
    if field in FLOATS:
        return b"".join(values)
    if len(values) > 1:  # each ends with the end of a number
        if charge is not None:
            charge(sum(map(len, values)))
        values = [b"".join(values)]
    packed = np.empty(count, one.dtype.numpy)
    octets = view_of(values[0] if values else b"")
    at = filled = 0
    while at < len(octets):
        numbers, used = _read_varints(octets[at : at + _PORTION], field)
        _store(one, field, numbers, packed, filled)
        filled += len(numbers)
        at += used
    return packed.view(np.uint8).data


def _read_varints(octets: NDArray[np.uint8], field: int) -> tuple[NDArray[np.uint64], int]:
    """The varints that end within `octets`, and how many bytes they take."""
    ends = np.flatnonzero(octets < 0x80)
    if not len(ends) or ends[0] >= _LONGEST:
        raise malformed(f"a number of {FIELDS[field]} has more than {_LONGEST} bytes")
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts
    longest = int(sizes.max())
    if longest >= _LONGEST:
        raise malformed(f"a number of {FIELDS[field]} has more than {_LONGEST} bytes")
    numbers = octets[starts].astype(np.uint64) & np.uint64(0x7F)
    for place in range(1, longest + 1):
        longer = np.flatnonzero(sizes >= place)
        part = octets[starts[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        numbers[longer] |= part << np.uint64(7 * place)
    return numbers, int(ends[-1]) + 1


def _store(one: Input, field: int, numbers: NDArray[np.uint64], packed: NDArray[Any], at: int) -> None:
    """Convert numbers as protobuf reads them, to 32 bits where the field has that, and see that the type holds them."""
    dtype: DType | None = one.dtype
    assert dtype is not None
    found: NDArray[Any] = numbers
    if field == 1:
        found = numbers != 0
    elif field == 2:
        found = numbers.astype(np.uint32).view(np.int32)
    elif field == 3:
        found = numbers.view(np.int64)
    elif field == 4:
        found = numbers.astype(np.uint32)
    if dtype.item_size < 4 and dtype.kind != "bool":
        wrong = np.flatnonzero((found < dtype.low) | (found > dtype.high))
        if len(wrong):
            item, value = at + int(wrong[0]), int(found[wrong[0]])
            pointer = one.pointer + place_of(field)
            raise GatherError(
                "value_not_representable",
                f"{one.name}: {value} is no {one.datatype}, which goes from {dtype.low} to {dtype.high}",
                places=[Place(f"{pointer}/{item}", coordinates(item, one.shape), value)],
                hint=f"Send a whole number from {dtype.low} to {dtype.high} at {pointer}/{item}.",
            )
    packed[at : at + len(found)] = found

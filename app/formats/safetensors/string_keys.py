"""String keys in a safetensors request. The format has no strings, so two tensors represent them.

`keys.offsets` (int64, n + 1) splits `keys.bytes` (uint8) into n keys of UTF-8, as in an upload. In a lookup, they are
named `0.keys.offsets`, `0.keys.bytes` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.formats.safetensors.header import Entry
from app.formats.safetensors.upload import check_column
from app.memory.budget import Memory
from app.tensors.dtypes import DTYPES
from app.tensors.little_endian_items import UTF8_HINT
from app.tensors.string_frames import HEAD, frames_of
from app.tensors.string_tensor import PackedStrings

_OFFSETS: Final = re.compile(r"((?:[0-9]{1,6}\.)?keys)\.offsets")


class StringKeys(NamedTuple):
    """The two tensors that represent the keys `name`."""

    name: str
    offsets: Entry
    octets: Entry


def with_string_keys(entries: Iterable[Entry]) -> dict[str, Entry | StringKeys]:
    """Return the tensors of a header by name, with each pair of offsets and bytes combined to string keys."""
    found: dict[str, Entry | StringKeys] = {entry.name: entry for entry in entries}
    for name, entry in list(found.items()):
        match = _OFFSETS.fullmatch(name)
        octets = None if match is None else found.get(f"{match[1]}.bytes")
        if match is not None and isinstance(entry, Entry) and isinstance(octets, Entry) and match[1] not in found:
            del found[name], found[octets.name]
            found[match[1]] = StringKeys(match[1], entry, octets)
    return found


def read_string_keys(keys: StringKeys, items: memoryview, memory: Memory) -> PackedStrings:
    """Read the keys from their tensors in `items`. Charges `memory` for the strings.

    Raises unsupported_dtype, invalid_field, element_count_mismatch, value_not_representable, and any error of charging.
    """
    check_column(keys.offsets, ("int64",))
    check_column(keys.octets, ("uint8",))
    octets = np.frombuffer(items[keys.octets.begin : keys.octets.end], np.uint8)
    cuts: NDArray[Any] = np.frombuffer(items[keys.offsets.begin : keys.offsets.end], np.uint8).copy().view("<i8")
    if not cuts.size or cuts[0] != 0 or cuts[-1] != octets.size:
        raise _wrong_offsets(keys, octets)
    count = cuts.size - 1
    memory.charge(octets.size + HEAD * count + 8 * (cuts.size + count))
    found = frames_of(cuts, octets)
    if found.made < count:
        raise _wrong_offsets(keys, octets)
    if found.wrong >= 0:
        place = Place(keys.octets.pointer, (found.wrong,))
        raise GatherError("value_not_representable", "a key is not UTF-8", places=[place], hint=UTF8_HINT)
    return PackedStrings(
        DTYPES["string"], (count,), found.starts, keys.octets.pointer, "whole", keys.offsets.pointer,
        keys.octets.pointer, octets=found.frames,
    )  # fmt: skip


def _wrong_offsets(keys: StringKeys, octets: NDArray[np.uint8]) -> GatherError:
    return GatherError(
        "element_count_mismatch",
        f"{keys.offsets.name} must begin with 0, never fall, and end with {octets.size}, the size of "
        f"{keys.octets.name}",
        pointer=keys.offsets.pointer,
        hint=f"Send at {keys.offsets.pointer} for each key the number of bytes before it, and then that of all.",
    )

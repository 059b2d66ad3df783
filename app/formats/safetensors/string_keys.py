"""String keys in a safetensors request. The format has no strings, so two tensors represent them.

`keys.offsets` (int64, n + 1) splits `keys.bytes` (uint8) into n keys of UTF-8, as in an upload. In a lookup, they are
named `0.keys.offsets`, `0.keys.bytes` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.formats.safetensors.header import Entry
from app.formats.safetensors.upload import check_column
from app.memory.budget import Memory
from app.tensors.dtypes import DTYPES
from app.tensors.little_endian_items import UTF8_HINT
from app.tensors.string_frames import HEAD, Framed, frames_of
from app.tensors.string_tensor import PackedStrings

_OFFSETS: Final = re.compile(r"((?:[0-9]{1,6}\.)?keys)\.offsets")


class StringKeys(NamedTuple):
    """The two tensors that represent the keys `name`."""

    name: str
    offsets: Entry
    octets: Entry


def with_string_keys(entries: Iterable[Entry]) -> dict[str, Entry | StringKeys]:
    """Return the tensors of a header by name, with each pair of offsets and bytes combined into string keys."""
    found: dict[str, Entry | StringKeys] = {entry.name: entry for entry in entries}
    for name, entry in list(found.items()):
        match = _OFFSETS.fullmatch(name)
        octets = None if match is None else found.get(f"{match[1]}.bytes")
        if match is not None and isinstance(entry, Entry) and isinstance(octets, Entry) and match[1] not in found:
            del found[name], found[octets.name]
            found[match[1]] = StringKeys(match[1], entry, octets)
    return found


class StringKeysReader:
    """Reads the string keys of a request from the bytes `items`; `entries` are the request's tensors by name.

    The first call of `read` reads all keys, because each compiled call has to wait for the GIL.
    """

    def __init__(self, entries: Iterable[tuple[str, Entry | StringKeys]], items: memoryview, memory: Memory) -> None:
        self._given = (entry for _, entry in entries if isinstance(entry, StringKeys))
        self._items = items
        self._memory = memory
        self._read: dict[str, PackedStrings | GatherError] = {}

    def read(self, keys: StringKeys) -> PackedStrings:
        """Return the tensor of `keys`. Charges memory for the strings.

        Raises unsupported_dtype, invalid_field, element_count_mismatch, value_not_representable, and any error of
        charging.
        """
        if not self._read:
            self._read_all()
        found = self._read[keys.name]
        if isinstance(found, GatherError):
            raise found
        return found

    def _read_all(self) -> None:
        framed: list[StringKeys] = []
        arrays: list[tuple[NDArray[np.int64], NDArray[np.uint8]]] = []
        for keys in self._given:
            try:
                arrays.append(self._arrays(keys))
                framed.append(keys)
            except GatherError as error:
                self._read[keys.name] = error
        for keys, found in zip(framed, frames_of(arrays), strict=True):
            self._read[keys.name] = _tensor(keys, found)

    def _arrays(self, keys: StringKeys) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the offsets, from 0 to the number of octets, and the octets. The offsets may not be aligned."""
        check_column(keys.offsets, ("int64",))
        check_column(keys.octets, ("uint8",))
        octets = np.frombuffer(self._items[keys.octets.begin : keys.octets.end], np.uint8)
        cuts: NDArray[np.int64] = np.frombuffer(self._items[keys.offsets.begin : keys.offsets.end], "<i8")
        if not cuts.size or cuts[0] != 0 or cuts[-1] != octets.size:
            raise _wrong_offsets(keys)
        count = cuts.size - 1
        self._memory.charge(octets.size + (HEAD + 8) * count)
        return cuts, octets


def _tensor(keys: StringKeys, found: Framed) -> PackedStrings | GatherError:
    count = len(found.starts)
    if found.made < count:
        return _wrong_offsets(keys)
    if found.wrong >= 0:
        place = Place(keys.octets.pointer, (found.wrong,))
        return GatherError("value_not_representable", "a key is not UTF-8", places=[place], hint=UTF8_HINT)
    return PackedStrings(
        DTYPES["string"], (count,), found.starts, keys.octets.pointer, "whole", keys.offsets.pointer,
        keys.octets.pointer, octets=found.frames,
    )  # fmt: skip


def _wrong_offsets(keys: StringKeys) -> GatherError:
    size = keys.octets.end - keys.octets.begin
    return GatherError(
        "element_count_mismatch",
        f"{keys.offsets.name} must begin with 0, never fall, and end with {size}, the size of {keys.octets.name}",
        pointer=keys.offsets.pointer,
        hint=f"At {keys.offsets.pointer}, send the number of bytes before each key, and then the total.",
    )

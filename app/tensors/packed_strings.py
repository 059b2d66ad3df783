"""Strings that stay packed: a resident table of strings is never made of Python objects, only what is gathered is.

And what strings take of memory where they are Python objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from sys import getsizeof
from typing import Any, Final, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from app.tensors.tensor import Tensor

LENGTH = Struct("<I")
OBJECT_BYTES: Final = 96
"""What a string takes beside its characters: the object, and its places in lists and arrays."""
AT_ONCE: Final = 1 << 14
"""Strings that are handled with the interpreter locked: other threads go on between these portions."""
_BLOCK: Final = 1 << 12
_LONG: Final = 1 << 16
_ASCII: Final = 49  # bytes of an empty str
_BEYOND_8_BITS: Final = 0xC4  # the first bytes of characters, in UTF-8
_BEYOND_16_BITS: Final = 0xF0


@dataclass(slots=True)
class PackedStrings(Tensor):
    """A tensor of strings in BYTES framing: `array` holds, for each item, where its frame starts within `octets`.

    A frame is a little-endian uint32 length and that many bytes of UTF-8, validated when the tensor was made.
    """

    octets: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def pick(self, starts: NDArray[Any], memory: Memory | None = None) -> NDArray[Any]:
        """The strings whose frames start at `starts`, as an array of str, which `memory` is charged with before."""
        if memory is not None:
            memory.charge(self.packed_size(starts) + OBJECT_BYTES * len(starts))
        octets = self.octets.data
        picked: NDArray[Any] = np.empty(len(starts), object)
        length = LENGTH.unpack_from
        reader = StringReader(None if memory is None else memory.charge)
        for first in range(0, len(starts), _BLOCK):
            for item, start in enumerate(starts[first : first + _BLOCK].tolist(), first):
                begin = start + 4
                picked[item] = reader.read(octets[begin : begin + length(octets, start)[0]])
        reader.close()
        return picked

    def packed_size(self, starts: NDArray[Any]) -> int:
        """Bytes of the frames that start at `starts`."""
        octets = self.octets
        total = 4 * len(starts)
        for first in range(0, len(starts), _BLOCK):
            at = starts[first : first + _BLOCK].astype(np.int64)
            lengths = np.zeros(len(at), np.int64)
            for byte in range(4):
                lengths |= octets[at + byte].astype(np.int64) << (8 * byte)
            total += int(lengths.sum())
        return total


class Memory(Protocol):
    """Where bytes are charged (see `app.memory.budget.MemoryReservation`)."""

    def charge(self, size: int) -> None:
        """Take `size` more bytes; raises where they are not to be had."""
        ...

    def adjust(self, planned: int, size: int) -> None:
        """What was charged as `planned` bytes takes `size`."""
        ...


class StringReader:
    """Makes strings of UTF-8; `charge` is told what they take beyond their bytes and OBJECT_BYTES each.

    A character beyond ASCII makes its whole string take up to four bytes a character. Of long strings that is charged
    before they are made, of short ones once there are some.
    """

    __slots__ = ("_charge", "_more")

    def __init__(self, charge: Callable[[int], None] | None) -> None:
        self._charge = charge
        self._more = 0

    def read(self, octets: memoryview) -> str:
        """One string. Raises UnicodeDecodeError, and what charging raises."""
        if len(octets) > _LONG and self._charge is not None:
            self._charge(wider_by(np.frombuffer(octets, np.uint8)))
            return str(octets, "utf-8")
        text = str(octets, "utf-8")
        if not text.isascii():
            self._more += max(0, getsizeof(text) - len(octets) - _ASCII)
            if self._more > _LONG:
                self.close()
        return text

    def close(self) -> None:
        """Charge what has not been. Raises what charging raises."""
        more, self._more = self._more, 0
        if more and self._charge is not None:
            self._charge(more)


def picked(strings: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
    """`strings[numbers]`, portion by portion."""
    found: NDArray[Any] = np.empty(len(numbers), object)
    for start in range(0, len(numbers), AT_ONCE):
        found[start : start + AT_ONCE] = strings[numbers[start : start + AT_ONCE]]
    return found


def release(strings: NDArray[Any]) -> None:
    """Let go of the strings of an array, which holds None afterwards, portion by portion.

    A string takes as long to be freed as to be made, and an array frees all of its own without a pause.
    """
    for start in range(0, strings.size, AT_ONCE):
        strings[start : start + AT_ONCE] = None


def many_strings(tensor: object) -> TypeGuard[Tensor]:
    """Whether letting go of a tensor's strings takes too long for the event loop."""
    return isinstance(tensor, Tensor) and tensor.dtype.kind == "string" and tensor.array.size > AT_ONCE


def wider_by(octets: NDArray[np.uint8]) -> int:
    """How many bytes a string may take beyond its UTF-8, by the largest byte of that."""
    top = int(octets.max(initial=0))
    return 0 if top < _BEYOND_8_BITS else len(octets) if top < _BEYOND_16_BITS else 3 * len(octets)


def framed_size(text: str) -> int:
    """Bytes of a string in BYTES framing."""
    return 4 + (len(text) if text.isascii() else len(text.encode()))

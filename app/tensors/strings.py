"""Strings that stay packed: a resident table of strings is never made of Python objects, only what is gathered is."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.tensors.tensor import Tensor

LENGTH = Struct("<I")


@dataclass(slots=True)
class PackedStrings(Tensor):
    """A tensor of strings in BYTES framing: `array` holds, for each item, where its frame starts within `octets`.

    A frame is a little-endian uint32 length and that many bytes of UTF-8, validated when the tensor was made.
    """

    octets: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def pick(self, starts: NDArray[Any]) -> NDArray[Any]:
        """The strings whose frames start at `starts`, as an array of str."""
        octets = self.octets.data
        picked: NDArray[Any] = np.empty(len(starts), object)
        length = LENGTH.unpack_from
        for item, start in enumerate(starts.tolist()):
            begin = start + 4
            picked[item] = str(octets[begin : begin + length(octets, start)[0]], "utf-8")
        return picked

    def packed_size(self, starts: NDArray[Any]) -> int:
        """Bytes of the frames that start at `starts`."""
        if not len(starts):
            return 0
        at = starts.astype(np.int64)
        octets = self.octets
        lengths = np.zeros(len(at), np.int64)
        for byte in range(4):
            lengths |= octets[at + byte].astype(np.int64) << (8 * byte)
        return int(lengths.sum()) + 4 * len(at)

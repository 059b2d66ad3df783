"""A tensor of packed strings: octets, and the offset of each string's frame in them.

Gathers move only the 8-byte offsets. Octets are copied only when a response is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from app.tensors.string_frames import HEAD, ROOM, copy_frames, first_longer, frames_size, read_frames
from app.tensors.tensor import Tensor

_NO_OCTETS = np.empty(0, np.uint8)
_FILLED_BYTES: Final = 18
"""Bytes per string that `PackedStrings.filled` needs in addition to octets: two offsets and two flags."""


@dataclass(slots=True)
class PackedStrings(Tensor):
    """A tensor of strings. `array` holds the int64 offset of each item's frame within `octets`.

    A frame is a little-endian uint32 length, followed by as many bytes of UTF-8, which are validated when the tensor is
    built (see `app.tensors.string_frames`). Both arrays are read-only. `on_disk` says that reading octets may wait for
    disk I/O.
    """

    octets: NDArray[np.uint8] = field(default_factory=lambda: _NO_OCTETS)
    on_disk: bool = False
    _nbytes: int | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Functions are compiled for one array type, which is read-only.
        self.array.setflags(write=False)
        self.octets.setflags(write=False)

    @property
    def nbytes(self) -> int:
        """Total bytes of all frames, computed once. Raises tensor_damaged."""
        if self._nbytes is None:
            self._nbytes = self.checked(frames_size.run(self.octets, self.array))
        return self._nbytes

    def gathered(self, shape: tuple[int, ...], starts: NDArray[Any]) -> PackedStrings:
        """Return the strings whose frames begin at `starts`, which are 8-byte items of `array`.

        The octets are shared.
        """
        return PackedStrings(self.dtype, shape, starts.view(np.int64), octets=self.octets, on_disk=self.on_disk)

    def joined(self, others: PackedStrings, charge: Callable[[int], None]) -> tuple[PackedStrings, PackedStrings]:
        """Return both tensors, sharing a single copy of all their octets.

        `charge` is called with the number of bytes before they are allocated, and may raise.
        """
        most = self.octets.size + others.octets.size
        charge(most + 8 * others.array.size)
        octets = np.concatenate((self.octets, others.octets))
        moved = others.array + self.octets.size
        return (
            PackedStrings(self.dtype, self.shape, self.array, octets=octets),
            PackedStrings(others.dtype, others.shape, moved, octets=octets),
        )

    def filled(
        self, where: NDArray[np.bool_], with_: PackedStrings, charge: Callable[[int], None] | None = None
    ) -> PackedStrings:
        """Return these strings, replacing each item where `where` is true with the only string of `with_`. Octets are
        copied.

        `charge` is called with the number of bytes before they are allocated, and may raise. Also raises
        tensor_damaged.
        """
        if charge is not None:
            charge(_FILLED_BYTES * where.size)
        others = ~where
        kept = PackedStrings(self.dtype, (int(np.count_nonzero(others)),), self.array[others], octets=self.octets)
        octets, count = kept.packed(charge), kept.array.size
        del kept
        filler = with_.packed()
        if charge is not None:
            charge(len(octets) + len(filler))
        frames = np.frombuffer(b"".join((octets, filler)), np.uint8)
        starts = np.empty(count + 1, np.int64)
        read_frames.run(frames, starts.size, starts)
        array = np.full(where.size, starts[-1])
        array[others] = starts[:-1]
        return PackedStrings(self.dtype, self.shape, array, octets=frames)

    def first_longer(self, most: int) -> int:
        """Return the index of the first string with more than `most` bytes of UTF-8, or -1."""
        item: int = first_longer.run(self.octets, self.array, most)
        return item

    def frame(self, item: int) -> memoryview:
        """Return the frame of one string."""
        start = int(self.array[item])
        length = int.from_bytes(self.octets[start : start + HEAD].tobytes(), "little")
        return self.octets[start : start + HEAD + length].data

    def packed(self, charge: Callable[[int], None] | None = None) -> memoryview:
        """Return all frames, back to back.

        `charge` is called with the number of bytes before they are allocated, and may raise. Also raises
        tensor_damaged.
        """
        size = self.nbytes
        if charge is not None:
            charge(size + ROOM)
        out = np.empty(size + ROOM, np.uint8)
        self.checked(copy_frames.run(self.octets, self.array, out))
        return out.data[:size]

    @staticmethod
    def checked(size: int) -> int:
        """Return `size`, the result of a function of `string_frames`. Raises tensor_damaged if it is negative.

        A negative result means that a frame was not within the octets. This can only happen to strings on disk, because
        strings in a request are validated frame by frame.
        """
        if size < 0:
            raise GatherError("tensor_damaged", "a string extends past the end of the data")
        return size


def packed_texts(texts: Sequence[str], pointer: str) -> PackedStrings:
    """Build a one-dimensional tensor of these strings, at `pointer` in a request."""
    octets = [text.encode() for text in texts]
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([HEAD + len(text) for text in octets], out=starts[1:])
    framed = b"".join(len(text).to_bytes(HEAD, "little") + text for text in octets)
    return PackedStrings(
        DTYPES["string"],
        (len(texts),),
        starts[:-1],
        pointer,
        "whole",
        pointer,
        pointer,
        np.frombuffer(framed, np.uint8),
    )

"""The layout of a key file after its first page.

    int64 and uint64   the keys, 8 bytes each
    string             the start and end of each key in the heap, two int64 each; then the heap, the UTF-8 of all keys

A file has room for `capacity` keys. The keys of existing rows come first. New keys are appended to the heap, so bytes
in use never change; the space of removed keys is reclaimed when the file is rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.keys.key_column import KeyColumn, KeyType
from app.store.files.tensor_file import PAGE
from app.tensors.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The layout of a table's key file: the type of its keys, and its capacity in keys and in bytes of strings."""

    dtype: KeyType
    capacity: int
    heap: int = 0

    @property
    def width(self) -> int:
        """The size in bytes of an integer, or of the bounds of a string."""
        return 16 if self.dtype == "string" else 8

    @property
    def heap_at(self) -> int:
        """The offset of the heap, counted after the first page."""
        return self.width * self.capacity

    @property
    def size(self) -> int:
        """The total size in bytes."""
        return self.heap_at + self.heap

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """The type and shape in the file's description."""
        if self.dtype == "string":
            return DTYPES["uint8"], (self.size,)
        return DTYPES[self.dtype], (self.capacity,)

    def column(self, mapping: object, count: int) -> KeyColumn:
        """Return the keys of the first `count` rows, as views into a mapping of the file."""
        octets = np.frombuffer(mapping, np.uint8)[PAGE : PAGE + self.size]  # type: ignore[call-overload]
        if self.dtype != "string":
            kind = np.int64 if self.dtype == "int64" else np.uint64
            return KeyColumn.integers(octets[: 8 * count].view(kind))
        return KeyColumn.strings(octets[: 16 * count].view(np.int64).reshape(-1, 2), octets[self.heap_at :])

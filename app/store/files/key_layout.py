"""What stands where in a key file, behind its first page.

int64 and uint64   the keys, 8 bytes each
string             where each key starts and stops in the heap, two int64 each; then the heap, the UTF-8 of all keys

A file has room for `capacity` keys. The keys of rows that there are come first. In the heap a new key stands behind all
others, so that bytes in use never change; what removed keys leave is free once the file is written anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.keys.key_column import KeyColumn, KeyType
from app.store.files.tensor_file import PAGE
from app.tensors.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The key file of a table: the type of its keys, and room for how many keys and bytes of strings."""

    dtype: KeyType
    capacity: int
    heap: int = 0

    @property
    def width(self) -> int:
        """Bytes of an integer, or of the place of a string."""
        return 16 if self.dtype == "string" else 8

    @property
    def heap_at(self) -> int:
        """Where the heap begins, behind the first page."""
        return self.width * self.capacity

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self.heap_at + self.heap

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """Type and shape in the file's description."""
        if self.dtype == "string":
            return DTYPES["uint8"], (self.size,)
        return DTYPES[self.dtype], (self.capacity,)

    def column(self, mapping: object, count: int) -> KeyColumn:
        """The keys of the first `count` rows, in a mapping of the file. Copies nothing."""
        octets = np.frombuffer(mapping, np.uint8)[PAGE : PAGE + self.size]  # type: ignore[call-overload]
        if self.dtype != "string":
            kind = np.int64 if self.dtype == "int64" else np.uint64
            return KeyColumn.integers(octets[: 8 * count].view(kind))
        return KeyColumn.strings(octets[: 16 * count].view(np.int64).reshape(-1, 2), octets[self.heap_at :])

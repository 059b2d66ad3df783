"""The keys of a table as announced by an upload: their type and size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.tensors.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class KeysSpec:
    """Uploaded keys: their type, their number and, for strings, the total number of bytes of their text.

    Strings are sent as offsets, int64[count + 1], followed by their UTF-8. `swap` is True if integers are big-endian.
    """

    dtype: Literal["int64", "uint64", "string"]
    count: int
    string_bytes: int = 0
    swap: bool = False

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """Type and shape of the tensor that holds the keys."""
        if self.dtype == "string":
            return DTYPES["uint8"], (8 * (self.count + 1) + self.string_bytes,)
        return DTYPES[self.dtype], (self.count,)

    @property
    def size(self) -> int:
        """Number of bytes in the keys as uploaded."""
        dtype, (items,) = self.stored
        return dtype.item_size * items

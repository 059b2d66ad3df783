"""Keys of a table as an upload announces them: their form and their number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.tensors.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class KeysSpec:
    """Uploaded keys: their type, their number, and for strings the total bytes of their text.

    Strings arrive as offsets, int64[count + 1], then their UTF-8. `swap` says that integers are big endian.
    """

    dtype: Literal["int64", "uint64", "string"]
    count: int
    string_bytes: int = 0
    swap: bool = False

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """Type and shape of the tensor that the keys make."""
        if self.dtype == "string":
            return DTYPES["uint8"], (8 * (self.count + 1) + self.string_bytes,)
        return DTYPES[self.dtype], (self.count,)

    @property
    def size(self) -> int:
        """Bytes of the keys as uploaded."""
        dtype, (items,) = self.stored
        return dtype.item_size * items

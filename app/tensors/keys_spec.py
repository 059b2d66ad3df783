"""Keys of a table as an upload announces them: how many bytes of them come, and in which form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.tensors.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class KeysSpec:
    """Keys that are uploaded: their type, how many there are, and the bytes of all strings together.

    Strings come as their offsets, int64[count + 1], and then their UTF-8. `swap` says that integers come big endian.
    """

    dtype: Literal["int64", "uint64", "string"]
    count: int
    string_bytes: int = 0
    swap: bool = False

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """Type and shape of the one tensor that all keys are."""
        if self.dtype == "string":
            return DTYPES["uint8"], (8 * (self.count + 1) + self.string_bytes,)
        return DTYPES[self.dtype], (self.count,)

    @property
    def size(self) -> int:
        """Bytes of the keys as they come."""
        dtype, (items,) = self.stored
        return dtype.item_size * items

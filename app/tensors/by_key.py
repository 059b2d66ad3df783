"""Fields of a request that selects rows by key, such as what to do with keys that the table does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from app.tensors.dtypes import DType
from app.tensors.tensor import Tensor

KEYS: Final = "keys"
"""Name of the input with keys, which replaces indices."""
FOUND: Final = "found"
"""Name of the output that says which keys were found: bool, with the shape of the keys."""
KEY_FIELDS: Final = ("missing", "missing_row", FOUND)
"""Fields that exist only in requests with keys."""
Missing = Literal["error", "fill", "row"]
"""What to return for a key that the table does not have: an error, a row of one fill value, or another row."""
MISSING: Final[tuple[Missing, ...]] = get_args(Missing)


class ItemOfRequest(Protocol):
    """A value in a request whose type is determined by another field."""

    @property
    def pointer(self) -> str:
        """Pointer to the value in the request."""
        ...

    def item(self, dtype: DType) -> Tensor:
        """Return the value as a tensor of one item. Raises value_not_representable."""
        ...


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A row that a request selects at `pointer`, by position or by key."""

    pointer: str
    position: int | None = None
    key: ItemOfRequest | None = None


@dataclass(frozen=True, slots=True)
class ByKey:
    """The fields of a request with keys. `missing_row` is set if `missing` is "row".

    `found` requests the output that says which keys were found.
    """

    missing: Missing = "error"
    missing_row: NamedRow | None = None
    found: bool = False

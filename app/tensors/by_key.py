"""How a request that names rows by key has those treated that its table lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from app.tensors.dtypes import DType
from app.tensors.tensor import Tensor

KEYS: Final = "keys"
"""The name of the input that has keys, in place of indices."""
FOUND: Final = "found"
"""The name of the output that says which keys the table has: bool, of the shape of the keys."""
KEY_FIELDS: Final = ("missing", "missing_row", FOUND)
"""The fields that a request has beside its keys."""
Missing = Literal["error", "fill", "row"]
"""What becomes of a key that the table lacks: an error; its row is filled with one value; or another row stands for it.
"""
MISSING: Final[tuple[Missing, ...]] = get_args(Missing)


class ItemOfRequest(Protocol):
    """A value in a request that has no type until the type of something else is known."""

    @property
    def pointer(self) -> str:
        """Where it stands in the request."""
        ...

    def item(self, dtype: DType) -> Tensor:
        """The value as a tensor of one item. Raises value_not_representable."""
        ...


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A row of a table that a request names at `pointer`: by its position, or by its key."""

    pointer: str
    position: int | None = None
    key: ItemOfRequest | None = None


@dataclass(frozen=True, slots=True)
class ByKey:
    """What a request says beside its keys. `missing_row` is there if `missing` is row.

    `found` asks for the output that says which keys the table has.
    """

    missing: Missing = "error"
    missing_row: NamedRow | None = None
    found: bool = False

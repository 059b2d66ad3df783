"""A lookup, read and typed but not yet judged: rows of many resident tensors in one request, single or as bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

from app.tensors.by_key import FOUND, KEYS, ByKey, NamedRow
from app.tensors.gather_call import ReadingCall
from app.tensors.operator_signature import Signature
from app.tensors.tensor import Tensor

Pooling = Literal["none", "sum", "mean", "max"]
"""What becomes of the rows of a bag: each stays a row of the output, or one row is made of them."""
POOLINGS: Final[tuple[Pooling, ...]] = get_args(Pooling)
LOOKUP: Final = "lookup"
"""The name of the route, of the model of the inference protocol and of the member that says what is no array."""
ARRAYS: Final = ("indices", KEYS, "offsets", "weights")
"""The arrays that a feature may have, in the order in which they are judged: either indices or keys."""


ROWS_OF_BAGS: Final = ("padding_index", "default_index")
"""The fields of a pooled feature that name a row: the entry that is skipped, and the row of an empty bag."""


def found_name(number: int) -> str:
    """The name of the output that says which keys of a feature its table has."""
    return f"{number}.{FOUND}"


@dataclass(slots=True)
class Feature:
    """Rows of the resident tensor `tensor`, by position: `indices`, and where pooled the first index of each bag.

    With `by_key` the indices are keys of rows. With `include_last_offset` the offsets have one entry more, the
    number of indices. Entries of bags that are `padding_index` are skipped, and an empty bag is of the row
    `default_index`.

    `pointer` is where the request has what is no array, such as `/features/3`.
    """

    tensor: str
    indices: Tensor
    offsets: Tensor | None = None
    weights: Tensor | None = None
    pooling: Pooling = "none"
    pointer: str = ""
    include_last_offset: bool = False
    by_key: ByKey | None = None
    padding_index: NamedRow | None = None
    default_index: NamedRow | None = None

    @property
    def edits_bags(self) -> bool:
        """Whether its bags are read with other entries than they have."""
        return self.padding_index is not None or self.default_index is not None

    @property
    def bags(self) -> int:
        """How many bags offsets of rank 1 begin."""
        return 0 if self.offsets is None else self.offsets.shape[0] - self.include_last_offset


@dataclass(slots=True)
class LookupCall(ReadingCall):
    """One lookup. `concat` joins the features' outputs on axis 1."""

    operator: ClassVar[str] = LOOKUP
    features: Sequence[Feature]
    concat: bool = True

    def dtype_pointer(self, number: int) -> str:
        """Where the request has what gives output `number` its type."""
        return f"{self.features[number].pointer}/tensor"


LOOKUP_SIGNATURE: Final = Signature(
    LOOKUP,
    (),
    (),
    inputs=(),
    default_dialect="",
    kind="lookup",
    residents=(),
    schema=("LookupRequest", "A lookup: rows of many resident tensors in one request, single or as pooled bags."),
)
"""It has no inputs but the arrays of its features, and no dialect to choose."""

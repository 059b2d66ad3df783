"""A lookup, typed but not yet validated: rows of many resident tensors in one request, single or as bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

from app.tensors.by_key import FOUND, KEYS, ByKey, NamedRow
from app.tensors.gather_call import ReadingCall
from app.tensors.operator_signature import Signature
from app.tensors.tensor import Tensor

Pooling = Literal["none", "sum", "mean", "max"]
"""How to combine the rows of a bag: keep every row, or reduce them to one."""
POOLINGS: Final[tuple[Pooling, ...]] = get_args(Pooling)
LOOKUP: Final = "lookup"
"""Name of the route, of the model in the inference protocol, and of the member that holds all fields except arrays."""
ARRAYS: Final = ("indices", KEYS, "offsets", "weights")
"""The arrays that a feature may have, in the order of validation. A feature has either indices or keys."""


ROWS_OF_BAGS: Final = ("padding_index", "default_index")
"""The fields of a pooled feature that specify a row: the entry used as padding, and the row of an empty bag."""


def found_name(number: int) -> str:
    """Return the name of the output that says which of a feature's keys were found."""
    return f"{number}.{FOUND}"


@dataclass(slots=True)
class Feature:
    """Rows of the resident tensor `tensor`, selected by `indices`. For pooling, `offsets` holds the start of each bag.

    With `by_key`, the indices are keys of rows. With `include_last_offset`, the offsets have one more entry, which is
    the number of indices. Entries equal to `padding_index` are skipped. `default_index` is the row for an empty bag.

    `pointer` is the JSON Pointer of the object that holds the feature's fields (except arrays), such as `/features/3`.
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
        """Whether padding or a default row changes the entries of the feature's bags."""
        return self.padding_index is not None or self.default_index is not None

    @property
    def bags(self) -> int:
        """The number of bags that offsets of rank 1 describe."""
        return 0 if self.offsets is None else self.offsets.shape[0] - self.include_last_offset


@dataclass(slots=True)
class LookupCall(ReadingCall):
    """One lookup. `concat` joins the features' outputs on axis 1."""

    operator: ClassVar[str] = LOOKUP
    features: Sequence[Feature]
    concat: bool = True

    def dtype_pointer(self, number: int) -> str:
        """Return the pointer to the field that determines the type of output `number`."""
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
"""A lookup has no inputs except the arrays of its features, and no dialects."""

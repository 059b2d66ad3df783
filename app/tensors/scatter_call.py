"""Changes to a resident tensor, typed but not yet validated: a scatter, or an upsert or removal by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.tensors.by_key import KEYS
from app.tensors.gather_call import AnyCall
from app.tensors.operator_signature import Reduction, Signature
from app.tensors.tensor import Tensor


@dataclass(slots=True)
class ScatterCall(AnyCall):
    """A scatter: writes `updates` to the slices that the tuples of `indices` select, combined by `reduction`."""

    indices: Tensor
    updates: Tensor
    reduction: Reduction


@dataclass(slots=True)
class KeyedCall(AnyCall):
    """An upsert of the rows of `keys`, with `updates` combined by `reduction`. Without updates, it is a removal."""

    keys: Tensor
    updates: Tensor | None = None
    reduction: Reduction = "none"


TABLE_SCATTER: Final = Signature(
    "scatter", (), (), inputs=("indices", "updates"), default_dialect="", kind="table_scatter", residents=()
)
"""Input names of a scatter into a resident tensor."""
UPSERT: Final = Signature(
    "upsert", (), (), inputs=(KEYS, "updates"), default_dialect="", kind="table_scatter", residents=()
)
REMOVE: Final = Signature("remove", (), (), inputs=(KEYS,), default_dialect="", kind="table_scatter", residents=())
"""Input names of a change by key."""

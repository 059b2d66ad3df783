"""Changes of a resident tensor, read and typed but not yet judged: a scatter, or an upsert or removal by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.tensors.by_key import KEYS
from app.tensors.gather_call import AnyCall
from app.tensors.operator_signature import Reduction, Signature
from app.tensors.tensor import Tensor


@dataclass(slots=True)
class ScatterCall(AnyCall):
    """`updates` go to the places of the resident tensor that the tuples of `indices` name, combined by `reduction`."""

    indices: Tensor
    updates: Tensor
    reduction: Reduction


@dataclass(slots=True)
class KeyedCall(AnyCall):
    """An upsert of the rows of `keys`: their `updates` are combined by `reduction`. Without updates a removal."""

    keys: Tensor
    updates: Tensor | None = None
    reduction: Reduction = "none"


TABLE_SCATTER: Final = Signature(
    "scatter", (), (), inputs=("indices", "updates"), default_dialect="", kind="table_scatter", residents=()
)
"""A scatter into a resident tensor, by the names of its inputs."""
UPSERT: Final = Signature(
    "upsert", (), (), inputs=(KEYS, "updates"), default_dialect="", kind="table_scatter", residents=()
)
REMOVE: Final = Signature("remove", (), (), inputs=(KEYS,), default_dialect="", kind="table_scatter", residents=())
"""A change of the rows of a table by key, by the names of its inputs."""

"""A scatter, read and typed but not yet judged: what `requests` makes of a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from app.tensors.gather_call import AnyCall
from app.tensors.operator_signature import Reduction
from app.tensors.tensor import Tensor


@dataclass(slots=True)
class ScatterCall(AnyCall):
    """`updates` go to the places of the resident tensor that the tuples of `indices` name, combined by `reduction`."""

    indices: Tensor
    updates: Tensor
    reduction: Reduction


@dataclass(frozen=True, eq=False)
class TableScatterSignature:
    """A scatter into a resident tensor, by the names of its inputs."""

    inputs: tuple[str, ...] = ("indices", "updates")
    kind: Literal["table_scatter"] = "table_scatter"


TABLE_SCATTER: Final = TableScatterSignature()

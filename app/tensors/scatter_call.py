"""A scatter, read and typed but not yet judged: what `requests` makes of a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.tensors.gather_call import AnyCall
from app.tensors.operator_signature import Reduction, Signature
from app.tensors.tensor import Tensor


@dataclass(slots=True)
class ScatterCall(AnyCall):
    """`updates` go to the places of the resident tensor that the tuples of `indices` name, combined by `reduction`."""

    indices: Tensor
    updates: Tensor
    reduction: Reduction


TABLE_SCATTER: Final = Signature(
    "scatter", (), (), inputs=("indices", "updates"), default_dialect="", kind="table_scatter", residents=()
)
"""A scatter into a resident tensor, by the names of its inputs."""

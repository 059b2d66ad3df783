"""A router's scatter to a range, judged against the rows here, as the change that the store carries out."""

from __future__ import annotations

from dataclasses import dataclass

from app.catalogue.conditions import ALWAYS, Conditions
from app.cluster.range_scatter import RangeScatter
from app.cluster.shard.range_errors import SequenceDiffers
from app.errors import invalid_field
from app.store.files.tensor_file import Description, etag_of, sequence_in
from app.store.scatters.pending_scatter import ScatterChange
from app.tensors.dtypes import DTYPES
from app.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class AtSequence(Conditions):
    """The condition that a range is at a sequence."""

    content: str = ""
    sequence: int = 0

    def check(self, etag: str | None, kind: str = "tensor") -> None:
        """Raises SequenceDiffers."""
        if etag != etag_of(self.content, self.sequence):
            raise SequenceDiffers(0 if etag is None else sequence_in(etag))


def change_of(about: Description, scatter: RangeScatter) -> tuple[ScatterChange, Conditions]:
    """The change that a router asks for, and its condition. Raises invalid_field for one that does not fit the rows."""
    order, rows = scatter.order, scatter.rows
    if order.dtype is not DTYPES[about.dtype]:
        raise invalid_field("/dtype", f"the rows are of type {about.dtype}")
    slices = about.item_count // order.width if order.width else 0
    if order.width and (about.item_count % order.width or (len(rows) and not 0 <= rows.min() <= rows.max() < slices)):
        raise invalid_field("/rows", f"the range has {about.item_count} items, and the rows do not fit it")
    updates = Tensor(order.dtype, (order.count, order.width), scatter.updates)
    change = ScatterChange(about.id, rows, updates, order.width, order.reduction, order.key, order.digest)
    if order.if_sequence is None:
        return change, ALWAYS
    return change, AtSequence(content=about.id, sequence=order.if_sequence)

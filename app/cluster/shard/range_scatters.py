"""Check a router's scatter against this shard's rows, and convert it to a change for the store."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from app.catalogue.conditions import ALWAYS, Conditions
from app.cluster.range_scatter import RangeScatter
from app.cluster.shard.range_errors import SequenceDiffers
from app.errors import invalid_field
from app.store.files.mapped_tensor import MappedContent
from app.store.files.tensor_file import Description, etag_of, sequence_in
from app.store.scatters.pending_scatter import KeyedChange, ScatterChange
from app.tensors.dtypes import DTYPES
from app.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class AtSequence(Conditions):
    """The condition that a range is at a given sequence."""

    content: str = ""
    sequence: int = 0

    def check(self, etag: str | None, kind: str = "tensor") -> None:
        """Raise SequenceDiffers unless the range is at the sequence."""
        if etag != etag_of(self.content, self.sequence):
            raise SequenceDiffers(0 if etag is None else sequence_in(etag))


def make_change(content: MappedContent, scatter: RangeScatter) -> tuple[ScatterChange | KeyedChange, Conditions]:
    """Return the change that a router requests, and its condition.

    Raises invalid_field if the change does not fit the rows.
    """
    about, order = content.description, scatter.order
    if order.dtype is not DTYPES[about.dtype]:
        raise invalid_field("/dtype", f"the rows are of type {about.dtype}")
    key_type = None if content.keys is None else content.keys.layout.dtype
    if order.key_type != key_type:
        raise invalid_field("/key_type", f"the rows have keys of type {key_type}")
    change = _positional_change(about, scatter) if scatter.keys is None else _keyed_change(about, scatter, scatter.keys)
    if order.if_sequence is None:
        return change, ALWAYS
    return change, AtSequence(content=about.id, sequence=order.if_sequence)


def _keyed_change(about: Description, scatter: RangeScatter, keys: Tensor) -> KeyedChange:
    order, width = scatter.order, prod(about.shape[1:])
    if order.width != width:
        raise invalid_field("/width", f"a row has {width} items")
    updates = None if order.removes else Tensor(order.dtype, (order.key_count, width), scatter.updates)
    return KeyedChange(about.id, keys, updates, width, order.reduction, order.key, order.digest)


def _positional_change(about: Description, scatter: RangeScatter) -> ScatterChange:
    order, rows = scatter.order, scatter.rows
    slices = about.item_count // order.width if order.width else 0
    if order.width and (about.item_count % order.width or (len(rows) and not 0 <= rows.min() <= rows.max() < slices)):
        raise invalid_field("/rows", f"the range has {about.item_count} items, and the rows do not fit it")
    updates = Tensor(order.dtype, (order.count, order.width), scatter.updates)
    return ScatterChange(about.id, rows, updates, order.width, order.reduction, order.key, order.digest)

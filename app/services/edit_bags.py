"""Edit bags before they are read: remove padding entries and add the default row to empty bags."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.operators.lookup_plan import check_offsets
from app.services.find_rows import resolve_named_row
from app.store import Resident
from app.tensors.dtypes import DTYPES
from app.tensors.lookup_call import Feature
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings

EDITED_BYTES: Final = 64
"""Upper bound on the bytes that `edit_bags` uses per index and per bag."""

_COMPARED_AT_ONCE: Final = 1 << 16
"""Number of bytes of strings compared in one step; the step uses nine times as much memory."""


class Bags(NamedTuple):
    """The arrays of a feature, ready for a kernel.

    For each index, `items` holds its position among the indices in the request, or -1 if it was added here.
    """

    indices: NDArray[Any]
    offsets: NDArray[Any]
    weights: NDArray[Any] | None
    items: NDArray[np.int64]


def skipped_entries(feature: Feature, resident: Resident) -> NDArray[np.bool_] | None:
    """Return a mask of the entries that are padding, or None if the feature has no padding index.

    The feature's indices are keys or positions. Raises index_out_of_bounds if the padding index is not a row, and
    value_not_representable.
    """
    padding, indices = feature.padding_index, feature.indices
    if padding is None:
        return None
    if padding.key is None:
        row = resolve_named_row(padding, "padding_index", None, resident.tensor.shape[0], feature.tensor)
        if isinstance(row, GatherError):
            raise row
        equal: NDArray[np.bool_] = indices.array == row
        return equal
    assert resident.keys is not None, "this was checked"
    key = padding.key.item(DTYPES[resident.keys.dtype])
    if isinstance(indices, PackedStrings):
        return _equal_strings(indices, bytes(key.frame(0)) if isinstance(key, PackedStrings) else b"")
    found: NDArray[np.bool_] = indices.array == key.array[0]
    return found


def edit_bags(
    feature: Feature,
    resident: Resident,
    indices: NDArray[Any],
    offsets: NDArray[Any],
    weights: NDArray[Any] | None,
    skipped: NDArray[np.bool_] | None,
) -> Bags:
    """Return the arrays of a feature with padding removed and the default row added to empty bags.

    Raises offsets_invalid, index_out_of_bounds and key_not_found (for the default row), and value_not_representable.
    """
    check_offsets(feature)
    items = np.arange(indices.size)
    if skipped is not None:
        kept = ~skipped
        before = np.concatenate(([0], np.cumsum(kept)))
        indices, items = indices[kept], items[kept]
        offsets = before[offsets].astype(offsets.dtype)
        weights = None if weights is None else weights[kept]
    if feature.default_index is not None:
        rows = resident.tensor.shape[0]
        row = resolve_named_row(feature.default_index, "default_index", resident.keys, rows, feature.tensor)
        if isinstance(row, GatherError):
            raise row
        empty = np.diff(offsets, append=indices.size) == 0
        at = offsets[empty]
        indices = np.insert(indices, at, row)
        items = np.insert(items, at, -1)
        if weights is not None:
            weights = np.insert(weights, at, _unit_weight(feature))
        offsets = (offsets + np.cumsum(empty) - empty).astype(offsets.dtype)
    return Bags(indices, offsets, weights, items)


def _unit_weight(feature: Feature) -> Any:
    """Return the weight 1 as an item of the weights' type."""
    assert feature.weights is not None
    dtype = feature.weights.dtype
    return np.ones(1, dtype.numpy).view(dtype.carrier)[0]


def _equal_strings(strings: PackedStrings, frame: bytes) -> NDArray[np.bool_]:
    """Return a mask of the strings whose frame equals `frame`."""
    wanted = np.frombuffer(frame, np.uint8)
    found = np.zeros(strings.array.size, np.bool_)
    inside = np.flatnonzero(strings.array + wanted.size <= strings.octets.size)
    at, width = 0, HEAD  # compare lengths first, because most strings differ in length
    while at < wanted.size and inside.size:
        part = wanted[at : at + width]
        places = (strings.array[inside] + at)[:, None] + np.arange(part.size)
        inside = inside[(strings.octets[places] == part).all(axis=1)]
        at += part.size
        width = max(HEAD, _COMPARED_AT_ONCE // max(inside.size, 1))
    found[inside] = True
    return found

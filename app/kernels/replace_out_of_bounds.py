"""Replace indices that are out of bounds before a kernel runs, and fill the slices of the affected tuples afterward.

Every kernel can then rely on valid indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.operators.gather_plan import Plan
from app.tensors.dtypes import DType
from app.tensors.gather_call import OutOfBounds
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

REPLACED_BYTES: Final = 17
"""Maximum number of bytes that `replace_out_of_bounds` allocates per component: two int64, and one byte for its
tuple.
"""
_TUPLES_PER_BLOCK: Final = 1 << 14
"""Number of tuples per block when indices are replaced or slices are filled. It bounds NumPy's temporary memory."""
_SHORT_SLICE: Final = 1 << 10
"""Maximum size in bytes of a slice that is written as a single item."""
_BEYOND_INT64: Final = np.uint64(2**63)


class Replacement(NamedTuple):
    """Flat `indices` in which invalid components were replaced, and the number of components that were `replaced`.

    `filled` says for each tuple whether its slice must be filled; it is None if no slice must be. An axis of size 0 has
    no valid index: with clip and wrap, its components are kept and not counted, and the kernel reports the first of
    them.
    """

    indices: NDArray[Any]
    replaced: int
    filled: NDArray[np.bool_] | None


def replace_out_of_bounds(plan: Plan, indices: NDArray[Any], mode: OutOfBounds) -> Replacement:
    """Apply `mode` (clip, wrap or fill) to the flat indices of a plan. Copies them only if any is replaced.

    Each component is judged separately, after negative components have been wrapped if the dialect does so
    (`plan.wrap`).
    """
    components = _as_int64(plan, indices, mode).reshape(-1, plan.depth)
    sizes = np.array(plan.dims, np.int64)
    empty = sizes == 0
    valid = np.empty_like(components)
    filled = np.zeros(len(components), np.bool_)
    replaced = 0
    for start in range(0, len(components), _TUPLES_PER_BLOCK):
        block = slice(start, start + _TUPLES_PER_BLOCK)
        values = components[block]
        if plan.wrap:
            values = np.where((values < 0) & (values >= -sizes), values + sizes, values)
        outside = (values < 0) | (values >= sizes)
        near = values % np.maximum(sizes, 1) if mode == "wrap" else values.clip(0, np.maximum(sizes - 1, 0))
        if mode != "fill":  # components on an axis of size 0 are kept
            near[:, empty] = values[:, empty]
            outside[:, empty] = False
        valid[block] = near
        filled[block] = outside.any(axis=1)
        replaced += int(np.count_nonzero(outside))
    if replaced == 0:
        return Replacement(indices, 0, None)
    if mode != "fill" and 0 in plan.dims and indices.dtype == np.uint64:
        # No component is negative at this point. Kept components may exceed int64, and the error must show the values
        # of the request.
        unsigned = valid.view(np.uint64)
        unsigned[:, empty] = indices.reshape(-1, plan.depth)[:, empty]
        return Replacement(unsigned.reshape(-1), replaced, None)
    return Replacement(valid.reshape(-1), replaced, filled if mode == "fill" else None)


def _as_int64(plan: Plan, indices: NDArray[Any], mode: OutOfBounds) -> NDArray[np.int64]:
    """Convert the indices to int64. Replace those that are too large for int64 with others on which `mode` has the same
    effect.
    """
    if indices.dtype != np.uint64 or not (indices >= _BEYOND_INT64).any():
        return indices.astype(np.int64) if indices.dtype != np.int64 else indices.view()
    if mode != "wrap":
        low: NDArray[np.uint64] = np.minimum(indices, _BEYOND_INT64 - np.uint64(1))
        return low.astype(np.int64)
    rows = indices.reshape(-1, plan.depth)
    sizes = np.array([max(size, 1) for size in plan.dims], np.uint64)
    near: NDArray[np.uint64] = rows % sizes + sizes
    # This exceeds int64 only if an axis is so long that data has no items. The component is out of bounds in any case.
    np.minimum(near, _BEYOND_INT64 - np.uint64(1), out=near)
    np.copyto(near, rows, where=rows < _BEYOND_INT64)
    return near.view(np.int64).reshape(-1)


def zero_item(dtype: DType) -> Tensor:
    """Return a tensor with one item: 0, false or an empty string."""
    if dtype.kind == "string":
        return PackedStrings(dtype, (1,), np.zeros(1, np.int64), octets=np.zeros(HEAD, np.uint8))
    return Tensor(dtype, (1,), np.zeros(1, dtype.numpy))


def filled_output(
    plan: Plan, output: Tensor, filled: NDArray[np.bool_], item: Tensor, charge: Callable[[int], None]
) -> Tensor:
    """Write `item` to the slices of the tuples in `filled`. Returns the output, which is a new tensor for strings.

    `charge` is called with the bytes of the new strings before they are allocated, and may raise. Also raises
    tensor_damaged.
    """
    if isinstance(output, PackedStrings) and isinstance(item, PackedStrings):
        where = np.zeros(plan.output_items, np.bool_)
        fill_slices(plan, where, filled, True)
        return output.filled(where, item, charge)
    fill_slices(plan, output.items, filled, item.items[0])
    return output


def fill_slices(plan: Plan, out: NDArray[Any], filled: NDArray[np.bool_], value: Any) -> None:
    """Write `value` to all items of the slices of `out` whose tuples are in `filled`."""
    if not out.size:
        return
    slices, one = _as_slices(out, plan.slice_items, value)
    if plan.broadcast_indices:
        slices.reshape(plan.batches, plan.tuples, -1)[:, np.flatnonzero(filled)] = one
    elif slices.shape[0] == len(filled):
        slices[np.flatnonzero(filled)] = one
    else:  # several batches use each set of tuples
        sets = len(filled) // plan.tuples
        shared = slices.reshape(sets, plan.batches // sets, plan.tuples, -1).swapaxes(1, 2)
        step = max(1, _TUPLES_PER_BLOCK // plan.tuples)
        for first in range(0, sets, step):
            block = slice(first, first + step)
            shared[block][filled.reshape(sets, plan.tuples)[block]] = one


def _as_slices(out: NDArray[Any], slice_items: int, value: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """View `out` with one slice per row. Returns the view and the value that fills a row.

    Short slices become single NumPy items, which are two to eight times as fast to write as rows.
    """
    width = slice_items * out.itemsize
    if width > _SHORT_SLICE:
        return out.reshape(-1, slice_items), np.array([value], out.dtype)
    whole = np.dtype((np.void, width))
    return out.view(whole).reshape(-1, 1), np.full(slice_items, value, out.dtype).view(whole)

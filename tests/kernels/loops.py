"""The gathers and scatters once more, in plain loops over coordinates, compiled for the millions of cases of the fuzz.

They share no line with a kernel. A slice is found by cutting the data into `size` equal pieces along each axis and
keeping one, so no flat offset or stride is ever made, and the first bad component is the first that the loops meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan


def gather_by_loops(plan: GatherPlan, data: NDArray[Any], indices: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Fill `out`, plan.output_bytes long, and return -1, or return the position of the first bad component."""
    first: int = _gather(
        np.array(plan.dims, np.int64), plan.batches, plan.tuples, plan.batches_per_set, plan.broadcast_indices,
        plan.wrap, data.view(np.uint8), indices, out,
    )  # fmt: skip
    return first


@njit(nogil=True)
def _gather(dims, batches, tuples, per_set, broadcast, wrap, data, indices, out):  # type: ignore[no-untyped-def]
    depth = len(dims)
    for place in range(len(indices)):
        size = dims[place % depth]
        lowest = -size if wrap else 0
        if indices[place] < lowest or indices[place] >= size:
            return place
    if len(out) == 0:
        return -1
    written = 0
    for batch in range(batches):
        for row in range(tuples):
            pieces = len(data) // batches
            start = batch * pieces
            line = row if broadcast else batch // per_set * tuples + row
            for axis in range(depth):
                component = indices[line * depth + axis]
                if component < 0:
                    component = dims[axis] + component
                pieces = pieces // dims[axis]
                start = start + component * pieces
            for byte in range(pieces):
                out[written] = data[start + byte]
                written += 1
    return -1


def gather_elements_by_loops(
    plan: GatherElementsPlan, data: NDArray[Any], indices: NDArray[np.int64], out: NDArray[np.uint8]
) -> int:
    """The same for GatherElements, as its plan says it: the coordinates of each entry anew, by division."""
    first: int = _gather_elements(
        np.array(plan.sizes, np.int64), np.array(plan.strides, np.int64), plan.axis_size, plan.axis_stride,
        plan.item_size, plan.wrap, data.view(np.uint8), indices, out,
    )  # fmt: skip
    return first


@njit(nogil=True)
def _gather_elements(sizes, strides, axis_size, axis_stride, width, wrap, data, indices, out):  # type: ignore[no-untyped-def]
    for place in range(len(indices)):
        if indices[place] < (-axis_size if wrap else 0) or indices[place] >= axis_size:
            return place
    for place in range(len(indices)):
        item = indices[place] * axis_stride
        if indices[place] < 0:
            item = (axis_size + indices[place]) * axis_stride
        rest = place
        for back in range(len(sizes)):
            axis = len(sizes) - 1 - back
            item = item + rest % sizes[axis] * strides[axis]
            rest = rest // sizes[axis]
        for byte in range(width):
            out[place * width + byte] = data[item * width + byte]
    return -1


def scatter_by_loops(
    plan: ScatterNDPlan, data: NDArray[Any], indices: NDArray[np.int64], out: NDArray[np.uint8], updates: NDArray[Any]
) -> int:
    """ScatterND of items that are replaced, or of unsigned integers that are added, byte by byte with carry."""
    first: int = _scatter(
        np.array(plan.dims, np.int64), plan.tuples, plan.item_size, plan.reduction == "add", plan.wrap,
        data.view(np.uint8), indices, out, updates.view(np.uint8),
    )  # fmt: skip
    return first


@njit(nogil=True)
def _scatter(dims, tuples, width, add, wrap, data, indices, out, updates):  # type: ignore[no-untyped-def]
    depth = len(dims)
    for place in range(len(indices)):
        size = dims[place % depth]
        if indices[place] < (-size if wrap else 0) or indices[place] >= size:
            return place
    for byte in range(len(data)):
        out[byte] = data[byte]
    if len(out) == 0:
        return -1
    for row in range(tuples):
        start, piece = 0, len(out)
        for axis in range(depth):
            component = indices[row * depth + axis]
            piece = piece // dims[axis]
            start = start + (dims[axis] + component if component < 0 else component) * piece
        _take(width, add, out[start : start + piece], updates[row * piece : (row + 1) * piece])
    return -1


def scatter_elements_by_loops(
    plan: ScatterElementsPlan,
    data: NDArray[Any],
    indices: NDArray[np.int64],
    out: NDArray[np.uint8],
    updates: NDArray[Any],
) -> int:
    """The same for ScatterElements, as its plan says it: the coordinates of each entry anew, by division."""
    first: int = _scatter_elements(
        np.array(plan.sizes, np.int64), np.array(plan.strides, np.int64), plan.axis_size, plan.axis_stride,
        plan.item_size, plan.reduction == "add", plan.wrap, data.view(np.uint8), indices, out, updates.view(np.uint8),
    )  # fmt: skip
    return first


@njit(nogil=True)
def _scatter_elements(sizes, strides, axis_size, axis_stride, width, add, wrap, data, indices, out, updates):  # type: ignore[no-untyped-def]
    for place in range(len(indices)):
        if indices[place] < (-axis_size if wrap else 0) or indices[place] >= axis_size:
            return place
    for byte in range(len(data)):
        out[byte] = data[byte]
    for place in range(len(indices)):
        item = (indices[place] + axis_size if indices[place] < 0 else indices[place]) * axis_stride
        rest = place
        for back in range(len(sizes)):
            axis = len(sizes) - 1 - back
            item = item + rest % sizes[axis] * strides[axis]
            rest = rest // sizes[axis]
        _take(width, add, out[item * width : (item + 1) * width], updates[place * width : (place + 1) * width])
    return -1


@njit(nogil=True)
def _take(width, add, target, update):  # type: ignore[no-untyped-def]
    carry = np.int64(0)
    for byte in range(len(target)):
        if byte % width == 0:
            carry = np.int64(0)
        value = np.int64(update[byte])
        if add:
            value = value + np.int64(target[byte]) + carry
        carry = value >> 8
        target[byte] = value & 255

"""Block-quantized gather: rows of 4-bit or 8-bit values, dequantized during the gather.

Rows are processed in portions that fit into the L2 cache. The functions that dequantize and round a portion are
parameters: either `dequantize` and `narrow`, which are the reference in NumPy, or the loops of
`numba_cpu.block_quantized_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import as_int64, check_array
from app.kernels.reference.indices import BLOCK_COMPONENTS, first_bad
from app.operators.gather_block_quantized import PORTION_ITEMS, BlockQuantizedPlan
from app.tensors.dtypes import DTYPES

Dequantize = Callable[
    [NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32], int, int, NDArray[np.float32]], None
]
"""(packed values [n, groups, bytes], zero points and scales [n, groups, blocks], bits per value, values per block,
output [n, groups, width]).
"""
Narrow = Callable[[NDArray[np.float32], NDArray[Any]], None]
"""(values, float16 or bfloat16 output of the same shape)."""
_BYTES: Final = np.dtype(np.uint8)


def dequantize(
    packed: NDArray[np.uint8],
    zeros: NDArray[np.float32],
    factors: NDArray[np.float32],
    bits: int,
    block_size: int,
    out: NDArray[np.float32],
) -> None:
    """Write float32(value - zero point) * scale to `out`."""
    blocks = np.arange(out.shape[-1]) // block_size
    np.subtract(unpack_values(packed, bits), zeros[..., blocks], out=out)
    with np.errstate(over="ignore", invalid="ignore"):
        out *= factors[..., blocks]


def narrow(values: NDArray[np.float32], out: NDArray[Any]) -> None:
    """Write the values to `out`, rounded half to even. Values out of range become infinite."""
    with np.errstate(over="ignore"):
        out[...] = values


def unpack_values(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Unpack the values along the last axis. Of two 4-bit values in a byte, the low half comes first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def run(
    plan: BlockQuantizedPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    *,
    scales: NDArray[Any],
    zero_points: NDArray[Any] | None = None,
    dequantize: Dequantize = dequantize,
    narrow: Narrow = narrow,
) -> int:
    """See `app.kernels.Kernel.run`.

    `data` and `zero_points` are bytes; `scales` and `out` are carriers of plan.dtype.
    """
    _check_arrays(plan, data, indices, out, scales, zero_points)
    first = first_bad(plan, indices.reshape(-1, 1), BLOCK_COMPONENTS)
    if first >= 0 or not out.size:
        return first
    dtype = DTYPES[plan.dtype].numpy
    table = data.reshape(plan.rows, plan.groups, -1)
    factors = scales.view(dtype).reshape(plan.rows, plan.groups, plan.blocks)
    zeros = None if zero_points is None else zero_points.reshape(plan.rows, plan.groups, -1)
    target = out.view(dtype).reshape(plan.tuples, plan.groups, plan.width)
    step = max(1, PORTION_ITEMS // plan.slice_items)
    middle = np.full((step, plan.groups, plan.blocks), 1 << (plan.bits - 1), np.float32)
    values = np.empty((step, plan.groups, plan.width), np.float32)
    for start in range(0, plan.tuples, step):
        rows = as_int64(indices[start : start + step])
        rows = np.where(rows < 0, rows + plan.rows, rows)
        offsets = middle[: len(rows)]
        if zeros is not None:
            offsets = unpack_values(zeros[rows], plan.bits)[..., : plan.blocks].astype(np.float32)
        part = target[start : start + step]
        made = part if part.dtype == np.float32 else values[: len(rows)]
        dequantize(table[rows], offsets, factors[rows].astype(np.float32), plan.bits, plan.block_size, made)
        if made is not part:
            narrow(made, part)
    return -1


def _check_arrays(
    plan: BlockQuantizedPlan, data: object, indices: object, out: object, scales: object, zero_points: object
) -> None:
    """Check that all arrays are 1-D and contiguous, with the plan's sizes and the types that `run` requires.

    Raises TypeError.
    """
    numbers = (plan.rows, plan.groups, plan.width, plan.tuples)
    if min(numbers) < 0 or plan.bits not in (4, 8) or plan.block_size < 2 or plan.width * plan.bits % 8:
        raise TypeError("the plan has a size that no array can have")
    carrier = DTYPES[plan.dtype].carrier
    given = [
        (data, "data", plan.data_items, _BYTES),
        (scales, "scales", plan.rows * plan.groups * plan.blocks, carrier),
        (out, "the output", plan.output_items, carrier),
    ]
    if zero_points is not None:
        given.append((zero_points, "zero points", plan.rows * plan.groups * plan.zero_point_bytes, _BYTES))
    for array, role, items, dtype in given:
        found = check_array(array, role, items)
        if found.dtype != dtype:
            raise TypeError(f"{role} of type {found.dtype}, not {dtype}")
        if array is out and not found.flags.writeable:
            raise TypeError("the output is read-only")
    if check_array(indices, "indices", plan.tuples).dtype.kind not in "iu":
        raise TypeError("indices must be integers")

"""The loop of the block-quantized gather, compiled by Numba: one pass over a portion's bytes.

It takes a third of NumPy's time for the same portion, which makes several passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any, Final

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from app.kernels.numba_cpu.gather_kernel import ENTRY_OPTIONS
from app.kernels.reference import block_quantized
from app.operators.gather_block_quantized import BlockQuantizedPlan

_FLOATS: Final = types.Array(types.float32, 3, "C")
_SIGNATURE: Final = (types.Array(types.uint8, 3, "C"), _FLOATS, _FLOATS, types.int64, types.int64, _FLOATS)


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache that `gather_kernel.configure` has named, all that `run` ever uses."""
    started = perf_counter()
    _compiled()
    if progress is not None:
        progress(f"kernel of block-quantized gathers ready after {perf_counter() - started:.2f} s")


def run(
    plan: BlockQuantizedPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    *,
    scales: NDArray[Any],
    zero_points: NDArray[Any] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`."""
    return block_quantized.run(plan, data, indices, out, scales=scales, zero_points=zero_points, dequantize=_compiled())


@cache
def _compiled() -> Any:
    """`_dequantize`, compiled for the arrays that a portion has."""
    compiler: Any = njit(**ENTRY_OPTIONS)
    dequantize = compiler(_dequantize)
    dequantize.compile(_SIGNATURE)
    dequantize.disable_compile()
    return dequantize


def _dequantize(
    packed: NDArray[np.uint8],
    zeros: NDArray[np.float32],
    factors: NDArray[np.float32],
    bits: int,
    block_size: int,
    out: NDArray[np.float32],
) -> None:
    """See `reference.block_quantized.Dequantize`."""
    rows, groups, width = out.shape
    for row in range(rows):
        for group in range(groups):
            for block in range(factors.shape[2]):
                zero, factor = zeros[row, group, block], factors[row, group, block]
                first = block * block_size
                end = min(first + block_size, width)
                if bits == 8:
                    for at in range(first, end):
                        out[row, group, at] = (np.float32(packed[row, group, at]) - zero) * factor
                else:
                    for at in range(first // 2, end // 2):
                        pair = packed[row, group, at]
                        out[row, group, 2 * at] = (np.float32(pair & 15) - zero) * factor
                        out[row, group, 2 * at + 1] = (np.float32(pair >> 4) - zero) * factor

"""The parameters of a gradient, in int64, at the beginning of its working memory: a job has no room for them all."""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.sort_tuples import DIGIT_BITS
from app.operators.backward_plan import SCRATCH_HEAD

(
    GRADIENT,
    RESULT,
    PAIRS,
    STARTS,
    GROUPS,
    COUNT,
    LOW_BITS,
    WIDTH,
    ITEM_SIZE,
    KIND,
    SPARSE,
    COEFFICIENT,
    BATCHES,
    TUPLES,
    ROWS,
    ROW_BLOCKS,
    COLUMN_BLOCKS,
    NONTEMPORAL,
    UNSORTED,
    HAS_NAN,
) = range(20)
"""The addresses of grad_output and of the result.

PAIRS has COUNT tuples, as place << LOW_BITS | number of the tuple, in the order of the places that they name; tuples of
one place are a group, and STARTS has where each of the GROUPS begins, and the end. A slice has WIDTH items of
ITEM_SIZE bytes. COEFFICIENT are the bits of a float64. Each of the BATCHES, if there are several, has the same TUPLES
and ROWS, slices of the result. The work is cut into BATCHES * ROW_BLOCKS * COLUMN_BLOCKS units. NONTEMPORAL is not 0
where caches do not hold the result.

Where UNSORTED is not 0, PAIRS has the tuples in their own order and there are no groups (`add_unsorted_rows`): either
they are added INTO_ZEROS that are there, or a unit adds INTO_OWN_ZEROS, which it writes first. HAS_NAN becomes 1 there
where a sum was a NaN."""
INTO_ZEROS, INTO_OWN_ZEROS = 1, 2
"""What UNSORTED is besides 0."""
FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = range(4)
"""What KIND is."""
KINDS: Final = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64}
HISTOGRAM: Final = 64
"""Where the sort may count, in items from the beginning."""
assert HISTOGRAM + (1 << DIGIT_BITS) <= SCRATCH_HEAD

"""The gather in one function compiled by Numba: what runs on a CPU.

One function serves every plan, because each compiled one costs start-up time: element types and item sizes do not
matter to it (slices are so many bytes), tuple depth is a loop, and the whole is one signature, so that no request can
meet a combination that was not compiled. It goes over the tuples in blocks of 256: component by component it checks and
adds up the offsets of a block, in vector registers; it asks for the next block's memory before it copies the current
one, so that the waits for memory overlap. It is serial and holds no GIL: `app.dispatch` splits large gathers over
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from app.spec.plan import GatherPlan

name = "numba"

_BLOCK: Final = 256
_UINT8: Final = np.dtype(np.uint8)
_CARRIER_BITS: Final = 8


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled."""
    if _compiled.cache_info().currsize:
        raise RuntimeError("the kernel is compiled already; configure the cache directory first")
    numba.config.CACHE_DIR = str(cache_dir)


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, all that `run` will ever use."""
    started = perf_counter()
    _compiled()
    if progress is not None:
        progress(f"gather kernel ready after {perf_counter() - started:.2f} s")


def run(plan: GatherPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
    """See `app.kernels.Kernel.run`."""
    first: int = _compiled()(
        data.view(_UINT8),
        indices,
        out.view(_UINT8),
        _sizes(plan.dims),
        plan.batches,
        plan.tuples,
        plan.slice_items,
        plan.item_size,
        plan.shared,
        plan.wrap,
    )
    return first


@lru_cache(maxsize=4096)
def _sizes(dims: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array(dims, dtype=np.int64)


@cache
def _compiled() -> Any:
    """The compiled function, closed for further signatures: a writable array passes where a read-only one is meant."""
    dispatcher = njit(nogil=True, cache=True, error_model="numpy")(_gather)
    read_bytes = types.Array(types.uint8, 1, "C", readonly=True)
    read_ints = types.Array(types.int64, 1, "C", readonly=True)
    write_bytes = types.Array(types.uint8, 1, "C")
    whole, flag = types.int64, types.boolean
    dispatcher.compile((read_bytes, read_ints, write_bytes, read_ints, whole, whole, whole, whole, flag, flag))
    dispatcher.disable_compile()
    return dispatcher

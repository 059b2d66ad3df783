"""The CPU kernel compiled by Numba: a function for each type of plan, each in a module of its own.

`run` is that of `gather_kernel`, which hands plans of other types on: so most calls are one call. GatherElements may be
left to NumPy's kernel until it is compiled, which is after a first start is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.kernels import numpy_cpu
from app.kernels.numba_cpu import gather_elements_kernel, gather_kernel
from app.operators.gather_elements import GatherElementsPlan

name = "numba"
splits = True
_ELEMENTS_FUNCTIONS: Final = 2
"""Functions of GatherElements that Numba compiles."""

run = gather_kernel.run
tune = gather_kernel.tune
gather_kernel.OTHER_PLANS[GatherElementsPlan] = gather_elements_kernel.run


compile_chunk = gather_kernel.compile_chunk
compile_others = gather_kernel.compile_others


def configure(cache_dir: Path) -> Path:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled.

    Returns its folder.
    """
    return gather_kernel.configure(cache_dir)


def is_cached(folder: Path) -> bool:
    """Whether `folder`, of `configure`, has all; GatherElements is compiled last."""
    return len(list(folder.rglob("gather_elements_kernel*.nbi"))) >= _ELEMENTS_FUNCTIONS


def leave_elements_to_numpy() -> None:
    """Have GatherElements run by NumPy's kernel until `warm_elements`."""
    gather_kernel.OTHER_PLANS[GatherElementsPlan] = numpy_cpu.run


def warm_elements(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, what `run` uses for GatherElements, and use it."""
    gather_elements_kernel.warm(progress)
    gather_kernel.OTHER_PLANS[GatherElementsPlan] = gather_elements_kernel.run


def warm(progress: Callable[[str], None] | None = None, *, elements: bool = True) -> None:
    """Compile, or load from the cache, all that `run` ever uses; without `elements` all but GatherElements."""
    gather_kernel.warm(progress)
    if elements:
        warm_elements(progress)

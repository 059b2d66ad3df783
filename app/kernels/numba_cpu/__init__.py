"""The CPU kernel compiled by Numba: a function for each type of plan, each in a module of its own.

`run` is that of `gather_kernel`, which hands plans of other types on: so most calls are one call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.kernels.numba_cpu import gather_elements_kernel, gather_kernel
from app.operators.gather_elements import GatherElementsPlan

name = "numba"
splits = True

run = gather_kernel.run
gather_kernel.OTHER_PLANS[GatherElementsPlan] = gather_elements_kernel.run


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled."""
    gather_kernel.configure(cache_dir)


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, all that `run` ever uses."""
    gather_kernel.warm(progress)
    gather_elements_kernel.warm(progress)

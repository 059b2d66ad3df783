"""The CPU kernel compiled by Numba: a function for each type of plan, each in a module of its own.

`run` is that of `gather_kernel`, which hands plans of other types on: so most calls are one call. The others may be
left to NumPy's kernel until they are compiled, which is after a first start is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from app.compilation.until_compiled import UntilCompiled
from app.kernels import reference
from app.kernels.check_lookup import FeatureArrays
from app.kernels.numba_cpu import (
    backward_kernel,
    block_quantized_kernel,
    gather_elements_kernel,
    gather_kernel,
    lookup_kernel,
    scatter_kernel,
)
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_block_quantized import BlockQuantizedPlan
from app.operators.gather_elements import GatherElementsPlan
from app.operators.lookup import FeaturePlan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan

name = "numba"
splits = True
_FILES: Final = ("gather_elements_kernel", "backward_", "scatter_", "lookup_")
"""With what names of files begin that have compiled functions for lookups and other plans than the gather's;
two of each."""
_OTHERS: Final[dict[type, Any]] = {
    GatherElementsPlan: gather_elements_kernel,
    BackwardPlan: backward_kernel,
    BlockQuantizedPlan: block_quantized_kernel,
    ScatterNDPlan: scatter_kernel,
    ScatterElementsPlan: scatter_kernel,
}
"""The kernels of plans other than the gather's, in the order in which they are compiled."""
_lookup: Final = UntilCompiled(reference.lookup)

run = gather_kernel.run
tune = gather_kernel.tune
gather_kernel.OTHER_PLANS.update((plan, kernel.run) for plan, kernel in _OTHERS.items())


compile_chunk = gather_kernel.compile_chunk
compile_others = gather_kernel.compile_others


def configure(cache_dir: Path) -> Path:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled.

    Returns its folder.
    """
    return gather_kernel.configure(cache_dir)


def is_cached(folder: Path) -> bool:
    """Whether `folder`, of `configure`, has all; lookups are compiled last."""
    return all(len(list(folder.rglob(f"{files}*.nbi"))) >= 2 for files in _FILES)


def lookup(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
    """See `app.kernels.Kernel.lookup`."""
    return _lookup.run(plans, arrays, threads)


def leave_others_to_numpy() -> None:
    """Have plans other than the gather's, and lookups, run by NumPy's kernel until `warm_others`."""
    _lookup.run = _lookup.plain
    for plan in _OTHERS:
        gather_kernel.OTHER_PLANS[plan] = reference.run_other


def warm_others(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, what `run` uses for plans other than the gather's and `lookup`, and use it."""
    for plan, kernel in _OTHERS.items():
        kernel.warm(progress)
        gather_kernel.OTHER_PLANS[plan] = kernel.run
    lookup_kernel.warm(progress)
    _lookup.run = lookup_kernel.lookup


def warm(progress: Callable[[str], None] | None = None, *, others: bool = True) -> None:
    """Compile, or load from the cache, all that `run` ever uses; without `others` what the gather uses alone."""
    gather_kernel.warm(progress)
    if others:
        warm_others(progress)

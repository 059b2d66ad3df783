"""The interface of the kernels. They share no base class; tests check that each one equals the reference kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from app.kernels.check_lookup import FeatureArrays
from app.operators.gather_plan import Plan
from app.operators.lookup_plan import FeaturePlan


class Unfinished(Exception):
    """A helper thread still holds its chunk of a gather. To get the result, call `wait` from a thread that may block.

    Until the gather ends, its arrays must not be reused. The kernel keeps references to them, even if nobody waits.
    """

    def wait(self) -> int:
        """Block until the gather ends. Returns what `Kernel.run` would have returned."""
        raise NotImplementedError


class Kernel(Protocol):
    """The interface of a kernel module. A kernel never reads or writes out of bounds, whatever its arguments are.

    A kernel has one function for each type of plan; `run` calls the one for its plan.
    """

    name: str
    splits: bool

    def run(
        self,
        plan: Plan,
        data: NDArray[Any],
        indices: NDArray[Any],
        out: NDArray[Any],
        threads: int = 1,
        may_leave_unfinished: bool = False,
        further: Mapping[str, NDArray[Any]] | None = None,
    ) -> int:
        """Gather `data` into `out`. Returns the first invalid component of `indices` in row-major order, or -1.

        If the kernel `splits`, up to `threads` - 1 helper threads share the work with the calling thread. After
        finishing its own part, the caller waits for the helpers, by default without a limit. With
        `may_leave_unfinished`, it waits at most half a millisecond and then raises `Unfinished`.

        `data`, `indices` and `out` are 1-D and contiguous. `data` holds plan.data_items carriers and `out` holds
        plan.output_items carriers (uint8, uint16, uint32, uint64 or complex128, depending on the item size); `data` may
        be read-only. `indices` holds plan.index_items aligned integers of any type. Every component is checked, even if
        the output is empty. If a component is invalid, the contents of `out` are undefined. The kernel's working memory
        does not grow with the arrays. Raises TypeError, before it touches any data, if an array does not match the
        plan.

        `further` maps names to the additional arrays that some plans need: operator inputs other than data and indices,
        and counters (arrays of one int64) to which the kernel adds. A gather accepts `fill` and `replaced`: each tuple
        that is out of bounds then selects the slice `fill` (in carriers) instead of being an error, and `replaced` (one
        int64) is set to the number of components out of bounds (see `check_arrays.can_fill`).
        """
        ...


class CpuKernel(Kernel, Protocol):
    """The interface of a CPU kernel module, which also does lookups."""

    def lookup(self, plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
        """Look up all features into their outputs.

        Returns -1, or a number that identifies an invalid feature. In the latter case, the outputs are undefined. For
        an invalid index, this is the feature's index; for invalid offsets, it is the feature's index plus BAD_OFFSETS.
        All offsets are checked before any index. The output is bit-identical for any number of `threads`. Raises
        TypeError, before it touches any data, if the arrays do not pass `check_lookup_arrays`.
        """
        ...

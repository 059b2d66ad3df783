"""Kernels: siblings without a base class that all do the same work, each proved equal to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from app.kernels.check_lookup import FeatureArrays
from app.operators.gather_plan import Plan
from app.operators.lookup_plan import FeaturePlan


class Unfinished(Exception):
    """A thread that helps with a gather has not given back its part yet: `wait` for it, on a thread that may.

    Until then the arrays belong to the gather; the kernel keeps them, whether anybody waits or not.
    """

    def wait(self) -> int:
        """What `Kernel.run` would have returned, once the gather is over."""
        raise NotImplementedError


class Kernel(Protocol):
    """What a kernel module offers. It never reads or writes out of bounds, whatever it is handed.

    It has a function for each type of plan; `run` calls the one for the plan that it gets.
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
        """Gather `data` into `out` and return the first bad component of `indices` in row-major order, or -1.

        The caller's thread may be helped by up to `threads` - 1 others, where `splits`. Once its own part is done it
        waits for them however long they take; with `may_leave_unfinished`, half a millisecond at most, and raises
        `Unfinished` then.

        All three are 1-D and contiguous: `data` of plan.data_items and `out` of plan.output_items carriers (uint8,
        uint16, uint32, uint64 or complex128 by item size; `data` may be read-only), `indices` of plan.index_items of
        any integer type, aligned. Every component is checked, also where the output is empty; what `out` holds after a
        bad one is undefined. It takes no memory that grows with any of the three. Raises TypeError, having touched
        nothing, for anything else.

        `further` has the arrays that only some plans ask for, by name: the operator's inputs behind data and indices,
        and what the function reports beside its result, as an array of one int64 that it adds to. A gather takes
        `fill`, a slice in carriers that each tuple out of bounds picks instead, and `replaced`, one int64 that becomes
        the number of components out of bounds, of which none is an error then (`check_arrays.can_fill`).
        """
        ...


class CpuKernel(Kernel, Protocol):
    """What a kernel module of the CPU offers: lookups, too."""

    def lookup(self, plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
        """Look up all features into their outputs: -1, or what is wrong first, and then the outputs are undefined.

        That is the number of a feature with a bad index, plus BAD_OFFSETS where its offsets are wrong; all offsets are
        checked before an index is. The bits of the output are the same for any number of `threads`. The arrays are as
        `check_lookup_arrays` asks; raises TypeError, having touched nothing, for anything else.
        """
        ...

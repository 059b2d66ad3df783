"""Check a kernel's arrays against its plan, before their memory is touched.

Every kernel performs this check itself. `numba_cpu` performs it in compiled code and calls these functions only for the
error message; the other kernels call `check_arrays`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan, Plan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import REDUCTIONS

ScatterPlan = ScatterNDPlan | ScatterElementsPlan
INDEX_TYPES: Final = tuple(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8))
_CARRIER_KINDS: Final = "uc"  # NumPy kinds of the carriers (see `app.tensors.dtypes.DType.carrier`)


def check_arrays(plan: GatherPlan, data: object, indices: object, out: object) -> None:
    """Check that the arrays are as `app.kernels.Kernel.run` requires and have the plan's sizes.

    Raises TypeError if not.
    """
    check_sets(plan)
    check_data(plan, data)
    check_indices_and_output(plan, indices, out)


def check_sets(plan: GatherPlan) -> None:
    """Check that the sets of tuples divide the batches evenly. Part of `check_arrays`. Raises TypeError."""
    shared = plan.batches_per_set
    if not plan.broadcast_indices and (shared < 1 or plan.batches % shared):
        raise TypeError(f"sets of tuples for {shared} batches each do not make {plan.batches} batches")


def can_fill(plan: Plan) -> bool:
    """Return whether kernels fill the slices of a plan themselves. They do so only if no two batches share tuples."""
    return isinstance(plan, GatherPlan) and (plan.batches == 1 or plan.batches_per_set == 1)


def check_fill(plan: GatherPlan, fill: object, replaced: object) -> None:
    """Check that `fill` is a slice of carriers and that `replaced` is one writable int64. Raises TypeError if not."""
    if not can_fill(plan):
        raise TypeError("several batches use the same tuples")
    _check_carriers(plan, fill, "fill", plan.slice_items)
    check_int64(replaced, "replaced", 1)


def check_elements_arrays(plan: GatherElementsPlan, data: object, indices: object, out: object) -> None:
    """Like `check_arrays`, for GatherElements. Also checks that the plan cannot reach an item outside `data`."""
    check_places(plan)
    check_data(plan, data)
    check_indices_and_output(plan, indices, out)


def check_scatter_arrays(plan: ScatterPlan, data: object, indices: object, out: object, updates: object) -> None:
    """Check that all arrays are as `app.kernels.Kernel.run` requires and have the plan's sizes.

    Raises TypeError if not. `updates` must also hold carriers.
    """
    check_scatter_plan(plan)
    check_data(plan, data)
    check_indices_and_output(plan, indices, out)
    _check_carriers(plan, updates, "updates", plan.update_items)


def check_scatter_plan(plan: ScatterPlan) -> None:
    """Check the plan alone. Part of `check_scatter_arrays`. Raises TypeError if the plan is invalid.

    The size of its dtype must be the item size, a reduction needs an arithmetic dtype, and no item that the plan can
    reach may lie outside the output.
    """
    dtype = DTYPES.get(plan.dtype)
    if dtype is None or plan.reduction not in REDUCTIONS or dtype.carrier.itemsize != plan.item_size:
        raise TypeError(f"no reduction {plan.reduction} of {plan.dtype} in {plan.item_size} bytes")
    if plan.reduction != "none" and not dtype.arithmetic:
        raise TypeError(f"{plan.dtype} cannot be reduced")
    if isinstance(plan, ScatterElementsPlan):
        check_places(plan)
    _check_sizes(plan)


def _check_sizes(plan: Plan) -> None:
    if min(plan.batches, plan.tuples, plan.slice_items, *plan.dims) < 0:
        raise TypeError("the plan has a negative size")


def check_places(plan: GatherElementsPlan | ScatterElementsPlan) -> None:
    """Check that no size is negative and that the plan cannot reach an item outside `data`. Raises TypeError if not."""
    numbers = (*plan.sizes, *plan.strides, plan.axis_size, plan.axis_stride, plan.data_items)
    if len(plan.sizes) != len(plan.strides) or min(numbers) < 0:
        raise TypeError("the plan has a negative size, or not a stride for each")
    last = (plan.axis_size - 1) * plan.axis_stride
    last += sum((size - 1) * stride for size, stride in zip(plan.sizes, plan.strides, strict=True))
    if plan.index_items and plan.axis_size and last >= plan.data_items:
        raise TypeError(f"the plan reaches item {last} of data, which has {plan.data_items}")


def check_data(plan: Plan, data: object) -> None:
    """Check `data` in host memory. Part of `check_arrays`."""
    _check_carriers(plan, data, "data", plan.data_items)


def check_indices_and_output(plan: Plan, indices: object, out: object) -> None:
    """Check `indices` and `out`. Part of `check_arrays`."""
    _check_sizes(plan)
    array = check_array(indices, "indices", plan.index_items)
    if array.dtype not in INDEX_TYPES:
        raise TypeError(f"indices of type {array.dtype}: they must be integers in the machine's byte order")
    if not array.flags.aligned:
        raise TypeError("indices must be aligned to their items")
    if not _check_carriers(plan, out, "the output", plan.output_items).flags.writeable:
        raise TypeError("the output is read-only")


def _check_carriers(plan: Plan, array: object, role: str, items: int) -> NDArray[Any]:
    return check_carriers(array, role, items, plan.item_size)


def check_carriers(array: object, role: str, items: int | None, item_size: int) -> NDArray[Any]:
    """Return the array if it holds carriers of `item_size` bytes and passes `check_array`.

    Raises TypeError otherwise.
    """
    found = check_array(array, role, items)
    if found.dtype.kind not in _CARRIER_KINDS or found.itemsize != item_size or not found.dtype.isnative:
        raise TypeError(f"{role} of type {found.dtype}: the plan is for carriers of {item_size} bytes")
    return found


def check_int64(array: object, role: str, items: int | None) -> NDArray[np.int64]:
    """Return the array if it holds writable int64 items and passes `check_array`. Raises TypeError otherwise."""
    found = check_array(array, role, items)
    if found.dtype != np.int64 or not found.flags.carray:
        raise TypeError(f"{role} must be a writable array of int64")
    return found


def check_array(array: object, role: str, items: int | None) -> NDArray[Any]:
    """Return the array if it is 1-D and contiguous and has `items` items (None: any number).

    Raises TypeError otherwise.
    """
    if type(array) is not np.ndarray:
        raise TypeError(f"{role} must be an array of NumPy's, not a {type(array).__name__}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(f"{role} must be contiguous and have one axis")
    if items is not None and array.size != items:
        raise TypeError(f"{role} has {array.size} items and the plan asks for {items}")
    return array


def as_int64(indices: NDArray[Any]) -> NDArray[np.int64]:
    """Convert indices of any integer type to int64.

    A uint64 above 2**63 - 1 becomes 2**63 - 1, which is always out of bounds.
    """
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    wide: NDArray[np.int64] = indices.astype(np.int64, copy=False)
    return wide

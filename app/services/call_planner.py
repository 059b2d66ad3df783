"""What a call's types, shapes and parameters lead to: its plan, and where it would run.

Both are remembered, since most calls are like one that came before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from numpy.typing import NDArray

from app.bounded_cache import BoundedCache
from app.dispatch.choose_backend import NO_STRINGS, BackendChooser, Decision, Facts
from app.errors import GatherError
from app.kernels.replace_out_of_bounds import zero_item
from app.operators.gather_plan import Plan
from app.operators.registry import OPERATORS
from app.operators.shape_rules import NO_TENSORS, check_dtypes, check_limits, output_type
from app.tensors.backward_call import BackwardCall
from app.tensors.by_key import ItemOfRequest
from app.tensors.dtypes import DType
from app.tensors.gather_call import Call
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

_MAX_REMEMBERED_PLANS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What follows from a call's types, shapes and parameters: its plan, and what `chooser` has decided for it."""

    plan: Plan
    shape: tuple[int, ...]
    first_axis: int
    dtype: DType
    """The type of what the kernel writes."""
    output_dtype: DType
    """The type that the output is asked for in."""
    size: int
    """Bytes of the output, and of what the kernel needs beside it."""
    chooser: BackendChooser
    cpu_only: str | None
    """Why no GPU can run it; None where one could."""
    usual: Decision
    """For data in memory that no GPU holds, under `auto`."""
    decisions: dict[Facts, Decision]
    """By the facts that have come."""

    def output(self, data: Tensor, carriers: NDArray[Any]) -> Tensor:
        """The output, of items as kernels write them."""
        if self.dtype is data.dtype:
            return data.gathered(self.shape, carriers)
        return Tensor(self.dtype, self.shape, carriers.view(self.dtype.numpy))


class CallPlanner:
    """Plans calls within `limits`, and remembers the plans of those that came last."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._remembered: BoundedCache[tuple[object, ...], Planned] = BoundedCache(_MAX_REMEMBERED_PLANS)

    def plan(
        self, call: Call, data: Tensor, chooser: BackendChooser, further: Mapping[str, Tensor] = NO_TENSORS
    ) -> Planned:
        """Validate, plan and choose; calls of the same types, shapes and parameters share one plan.

        `further` has the inputs beside data and indices. Raises every error of the operator that does not depend on the
        indices' values.
        """
        indices = call.indices
        key: tuple[object, ...] = (
            call.operator,
            call.dialect,
            call.parameters,
            call.batch_dims,
            call.output_dtype,
            data.dtype.name,
            data.shape,
            indices.dtype.name,
            indices.shape,
        )
        if further:
            types = [(name, tensor.dtype.name, tensor.shape) for name, tensor in further.items()]
            key = (*key, call.reduction, *types)
        planned = self._remembered.get(key)
        if planned is None or planned.chooser is not chooser:
            operator = OPERATORS[call.operator]
            dialect = operator.dialects[call.dialect]
            if isinstance(call.data, str):  # what is wrong with a resident tensor is told where it is named
                data = replace(data, shape_pointer=call.data_pointer, dtype_pointer=call.data_pointer)
            inputs = {"data": data, "indices": indices, **further}
            check_dtypes(dialect, data, indices, further)
            dtype = inputs[operator.typed_by].dtype
            output_dtype = output_type(call, dtype)
            plan, shape, first_axis = operator.plan(dialect, call, data, further)
            check_limits(inputs, shape, output_dtype, self._limits)
            size = plan.output_bytes + plan.scratch_bytes
            if output_dtype is not dtype:
                size += plan.output_items * output_dtype.item_size
            cpu_only = NO_STRINGS if data.dtype.kind == "string" else None
            if not operator.on_gpu:
                cpu_only = f"{operator.name} runs on the CPU alone"
            facts = Facts(cpu_only=cpu_only)
            usual = chooser.decide(plan, facts)
            planned = Planned(
                plan, shape, first_axis, dtype, output_dtype, size, chooser, cpu_only, usual, {facts: usual}
            )
            self._remembered[key] = planned
        return planned


def offered(decision: Decision, call: Call | BackwardCall) -> Decision:
    """The decision itself. Raises device_unavailable if it refuses the device that the call asks for."""
    if decision.refused is not None:
        detail = f"{decision.refused}; use device auto or cpu"
        raise GatherError("device_unavailable", detail, pointer=call.pointer("device"))
    return decision


def fill_item(value: ItemOfRequest | None, dtype: DType, limits: Limits) -> tuple[Tensor, GatherError | None]:
    """What slices are filled with, a tensor of one item: 0, false or an empty string where no value is given.

    Beside it the error where that is a string that is too long. Raises value_not_representable.
    """
    if value is None:
        return zero_item(dtype), None
    item = value.item(dtype)
    if not isinstance(item, PackedStrings) or item.first_longer(limits.string_bytes) < 0:
        return item, None
    return item, GatherError(
        "limit_exceeded",
        f"fill_value has more than {limits.string_bytes} bytes of UTF-8",
        pointer=value.pointer,
        facts={"limit": "string_bytes", "maximum": limits.string_bytes},
    )

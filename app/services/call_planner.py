"""Plan a call based on its types, shapes and parameters, and choose where it runs.

Plans and decisions are cached, because most calls resemble an earlier one.
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
    """The plan of a call with these types, shapes and parameters, and the decisions of `chooser` for it."""

    plan: Plan
    shape: tuple[int, ...]
    first_axis: int
    dtype: DType
    """The type that the kernel writes."""
    output_dtype: DType
    """The type requested for the output."""
    size: int
    """Number of bytes in the output and in the kernel's working memory."""
    chooser: BackendChooser
    cpu_only: str | None
    """Why no GPU can run the call, or None if one could."""
    usual: Decision
    """The decision under `auto` for data that is in memory and not on a GPU."""
    decisions: dict[Facts, Decision]
    """The decisions made so far, by the facts on which they are based."""

    def output(self, data: Tensor, carriers: NDArray[Any]) -> Tensor:
        """Return the output tensor for the items that a kernel wrote."""
        if self.dtype is data.dtype:
            return data.gathered(self.shape, carriers)
        return Tensor(self.dtype, self.shape, carriers.view(self.dtype.numpy))


class CallPlanner:
    """Plans calls within `limits` and caches the most recent plans."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._remembered: BoundedCache[tuple[object, ...], Planned] = BoundedCache(_MAX_REMEMBERED_PLANS)

    def plan(
        self, call: Call, data: Tensor, chooser: BackendChooser, further: Mapping[str, Tensor] = NO_TENSORS
    ) -> Planned:
        """Validate and plan a call, and choose where it runs; calls of the same types, shapes and parameters share a
        plan.

        `further` holds the inputs other than data and indices. May raise any operator error that does not depend on the
        values of the indices.
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
            if isinstance(call.data, str):  # errors about a resident tensor point to its name in the request
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
                cpu_only = f"{operator.name} runs only on the CPU"
            facts = Facts(cpu_only=cpu_only)
            usual = chooser.decide(plan, facts)
            planned = Planned(
                plan, shape, first_axis, dtype, output_dtype, size, chooser, cpu_only, usual, {facts: usual}
            )
            self._remembered[key] = planned
        return planned


def check_offered(decision: Decision, call: Call | BackwardCall) -> Decision:
    """Return the decision. Raises device_unavailable if the decision refuses the device that the call requests."""
    if decision.refused is not None:
        detail = f"{decision.refused}; use device auto or cpu"
        raise GatherError("device_unavailable", detail, pointer=call.pointer("device"))
    return decision


def fill_item(value: ItemOfRequest | None, dtype: DType, limits: Limits) -> tuple[Tensor, GatherError | None]:
    """Return the fill value as a tensor of one item, and an error if it is a string that is too long.

    The default is 0, false or an empty string. Raises value_not_representable.
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

"""Run gradients of gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.dispatch.choose_backend import LARGE_INDEX_SCAN, Decision, Facts
from app.errors import GatherError
from app.kernels.replace_out_of_bounds import REPLACED_BYTES, fill_slices, replace_out_of_bounds
from app.operators.backward import Backward, check_backward_dtypes, check_coefficient
from app.operators.backward_plan import FLOAT_TYPES, BackwardPlan
from app.operators.index_out_of_bounds import index_error
from app.operators.registry import GRADIENTS
from app.services.call_planner import check_offered
from app.services.runner import Explanation, Runner
from app.telemetry.served_request import ServedRequest
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.tensor import Tensor

_INT64: Final = np.dtype(np.int64)
_NO_ITEMS: Final = np.empty(0, np.uint8)


class _Inputs(NamedTuple):
    """The inputs of a kernel that sums gradients."""

    plan: BackwardPlan
    grad_output: NDArray[Any]
    indices: NDArray[Any]


class PreparedGradient(NamedTuple):
    """A gradient that is ready to run. Its data consists of a shape only, without items."""

    call: BackwardCall
    data: Tensor
    planned: Backward
    decision: Decision

    @property
    def size(self) -> int:
        plan = self.planned.plan
        return plan.output_bytes + plan.scratch_bytes

    @property
    def explanation(self) -> Explanation:
        """See `AnyPrepared`. A sparse gradient lists no outputs, because their shapes depend on the values."""
        outputs = {} if self.call.sparse else {"grad_data": (self.data.dtype, self.data.shape)}
        call = self.call
        inputs = {
            "data": (self.data, call.shape),
            "indices": (call.indices, None),
            "grad_output": (call.grad_output, None),
        }
        return Explanation(call, (self.data,), outputs, self.planned.plan, self.decision, inputs=inputs)


class Gradients(Runner):
    """Runs gradients."""

    def prepare(self, call: BackwardCall, *, on_device: bool = False) -> PreparedGradient:
        """Resolve the shape, validate the call, and choose a route; see `Service.run`.

        Does not read the values of the indices.
        """
        data, planned = self._plan(call)
        facts = Facts(call.device, f"{call.operator} runs only on the CPU")
        decision = check_offered(self.resources.chooser.decide(planned.plan, facts), call)
        return PreparedGradient(call, data, planned, decision)

    async def start(self, prepared: PreparedGradient, request: ServedRequest) -> Answer:
        """Run a prepared gradient. Further allocations are charged to the request's memory first.

        Raises index_out_of_bounds, overloaded, deadline_exceeded and ClientGone.
        """
        resources = self.resources
        call, data, planned, decision = prepared
        plan = planned.plan
        fields = GRADIENTS[call.operator].dialects[call.dialect].fields
        drops = fields is not None and fields.fills
        if drops:
            request.memory.charge(REPLACED_BYTES * plan.index_items + call.grad_output.array.nbytes)
        request.route, request.parts, on_event_loop = decision.choice
        out = resources.outputs.empty_aligned(plan.output_items, data.dtype.carrier)
        further = {"scratch": resources.outputs.empty(plan.scratch_items, _INT64)}
        if plan.sparse:
            further |= {"places": np.empty(plan.rows, np.int64), "count": np.zeros(1, np.int64)}

        def work() -> int:
            resources.start_kernel(request)
            run, inputs = resources.kernel.run, _Inputs(plan, call.grad_output.items, call.indices.array)
            if not drops:
                return run(*inputs, out, request.parts, False, further)
            valid = _drop_out_of_bounds(inputs)
            if valid is None:
                return -1
            # Fewer tuples may remain than were planned.
            trimmed = further | ({"places": further["places"][: valid.plan.rows]} if plan.sparse else {})
            return run(*valid, out[: valid.plan.output_items], request.parts, False, trimmed)

        # Work shared with helpers runs in the pool, because otherwise the event loop would have to wait for the
        # helpers.
        here = on_event_loop and request.parts == 1
        bad = work() if here else await resources.pool.run(work, request)
        request.kernel_end = perf_counter()
        if bad >= 0:
            raise await self._index_error(call, data, planned, request)
        if not plan.sparse:
            outputs = {"grad_data": Tensor(data.dtype, data.shape, out.view(data.dtype.numpy))}
            return Answer(outputs, call.dialect)
        few = int(further["count"][0]) * plan.depth < LARGE_INDEX_SCAN
        outputs = await resources.pool.run_unless(few, lambda: _sparse_outputs(data, planned, out, further), request)
        request.kernel_end = perf_counter()
        return Answer(outputs, call.dialect)

    def _plan(self, call: BackwardCall) -> tuple[Tensor, Backward]:
        """Return the gather's data (without items) and the plan."""
        shape, resident = call.shape, None
        if isinstance(shape, str):
            resident = self.resources.resolve(shape, call.shape_pointer)
            found = resident.tensor
            data = Tensor(
                found.dtype, found.shape, _NO_ITEMS, shape_pointer=call.shape_pointer, dtype_pointer=call.shape_pointer
            )
        else:
            data = Tensor(call.grad_output.dtype, shape, _NO_ITEMS, shape_pointer=call.shape_pointer)
        if call.grad_output.dtype.name in FLOAT_TYPES:
            check_coefficient(call.lda_coeff, call.grad_output.dtype, call.pointer("lda_coeff"))
        operator = GRADIENTS[call.operator]
        dialect = operator.dialects[call.dialect]
        check_backward_dtypes(dialect, data if resident is not None else None, call.indices, call.grad_output)
        return data, operator.plan(dialect, call, data, self.resources.limits)

    async def _index_error(
        self, call: BackwardCall, data: Tensor, planned: Backward, request: ServedRequest
    ) -> GatherError:
        dialect, indices = GRADIENTS[call.operator].dialects[call.dialect], call.indices

        def work() -> GatherError:
            error = index_error(dialect, data.shape, indices, planned.first_axis, planned.plan.depth)
            first = error.places[0]
            if first.allowed is not None:
                error.hint = f"Use an index from {first.allowed[0]} to {first.allowed[1]} at {first.pointer}."
            else:
                error.hint = f"Send no index for axis {first.axis}: it has size 0, so no index is valid."
            return error

        return await self.resources.pool.run_unless(indices.array.size < LARGE_INDEX_SCAN, work, request)


def _drop_out_of_bounds(inputs: _Inputs) -> _Inputs | None:
    """Drop tuples that are out of bounds. The gather filled their slices, so no gradient flows back through them.

    Returns None if nothing is left to add. A dense gradient keeps such tuples and adds +0.0 for them, which changes no
    sum, because no sum is -0.0.
    """
    plan, grad_output, indices = inputs
    replacement = replace_out_of_bounds(plan, indices, "fill")
    filled = replacement.filled
    if filled is None:
        return inputs
    if 0 in plan.dims:
        return None
    if plan.sparse:
        kept = ~filled
        left = replace(plan, gather=replace(plan.gather, tuples=int(np.count_nonzero(kept))))
        rows = grad_output.reshape(plan.tuples, plan.slice_items)[kept].reshape(-1)
        return _Inputs(left, rows, replacement.indices[kept])
    grad_output = grad_output.copy()
    fill_slices(plan, grad_output, filled, 0)
    return _Inputs(plan, grad_output, replacement.indices)


def _sparse_outputs(
    data: Tensor, planned: Backward, out: NDArray[Any], further: dict[str, NDArray[np.int64]]
) -> dict[str, Tensor]:
    """Return grad_indices and grad_values for the places that tuples select."""
    plan, shapes = planned.plan, planned.shapes
    count = int(further["count"][0])
    tuples = _tuples(further["places"][:count], plan.dims)
    values = out[: count * plan.slice_items].view(data.dtype.numpy)
    return {
        "grad_indices": Tensor(DTYPES["int64"], (count, *shapes.entry), tuples),
        "grad_values": Tensor(data.dtype, (count, *shapes.slice), values),
    }


def _tuples(places: NDArray[np.int64], dims: Sequence[int]) -> NDArray[np.int64]:
    """Return the concatenated index tuples of flat places. Overwrites `places`."""
    if len(dims) == 1:
        return places
    tuples = np.empty((len(places), len(dims)), np.int64)
    for axis in range(len(dims) - 1, 0, -1):
        if dims[axis]:  # an axis of size 0 has no places
            np.divmod(places, dims[axis], out=(places, tuples[:, axis]))
    tuples[:, 0] = places
    return tuples.reshape(-1)

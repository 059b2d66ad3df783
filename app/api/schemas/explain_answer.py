"""What `?explain=true` answers: an answer without values, and with the plan, each route with its threshold, the choice.

It has the form of a gather's answer, so that generated clients have one type for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf
from typing import Any, Final

from app.dispatch.choose_backend import Decision, Size
from app.operators.gather_plan import Plan
from app.operators.lookup import LookupPlan
from app.services.runner import Explanation
from app.tensors.backward_call import BackwardCall
from app.tensors.gather_call import Call
from app.tensors.lookup_call import LOOKUP, LookupCall
from app.tensors.tensor import Tensor, nbytes

NOT_CHECKED: Final = "The values of the indices were not checked: one of them may be out of bounds."
LOOKUP_NOT_CHECKED: Final = "The values of indices and offsets were not checked: one of them may be wrong."


def explanation_body(explanation: Explanation) -> dict[str, Any]:
    """The JSON body.

    A sparse gradient has no output, and as `output_bytes` the most that it may have.
    """
    call, data, outputs, plan, decision, residents, further, shards = explanation
    if isinstance(call, LookupCall):
        operator, not_checked = LOOKUP, LOOKUP_NOT_CHECKED
        named = zip((feature.tensor for feature in call.features), residents, strict=True)
        said: dict[str, Any] = {
            "features": [{"tensor": name, "data_etag": one.etag, "version": one.data_version} for name, one in named]
        }
    else:
        operator, not_checked = call.operator, NOT_CHECKED
        said = {"dialect": call.dialect, "device": decision.device}
        for one in residents:
            said |= {"data_etag": one.etag, "version": one.data_version}
    strings = any(dtype.kind == "string" for dtype, _ in outputs.values())
    found = {
        "operator": operator,
        **(_features(explanation) if isinstance(call, LookupCall) else _inputs(call, data[0], further)),
        "output_bytes": None if strings else plan.output_bytes,
        **({} if isinstance(plan, LookupPlan) else _plan(plan)),
        **_routes(decision),
        **({"shards": shards[0]} if shards and not isinstance(call, LookupCall) else {}),
        "not_checked": not_checked,
    }
    shown = {name: {"dtype": dtype.name, "shape": shape} for name, (dtype, shape) in outputs.items()}
    given = {"outputs": [*shown.values()]} if isinstance(call, LookupCall) and not call.concat else shown
    return {**given, **said, "explanation": found}


def _inputs(call: Call | BackwardCall, data: Tensor, further: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inputs of an operator; some may be resident, and of a gradient's data there may be a shape alone."""
    if isinstance(call, BackwardCall):
        inputs = {"data": _named(data, call.shape), "indices": _tensor(call.indices)}
        return inputs | {"grad_output": _tensor(call.grad_output)}
    inputs = {"data": _named(data, call.data), "indices": _tensor(call.indices)}
    return inputs | {name: _named(tensor, call.further[name]) for name, tensor in further.items()}


def _named(tensor: Tensor, given: object) -> dict[str, Any]:
    """A tensor, with the name that a request has `given` in its place if it is resident."""
    return _tensor(tensor) | ({"tensor": given} if isinstance(given, str) else {})


def _features(explanation: Explanation) -> dict[str, Any]:
    """What each feature of a lookup reads and writes."""
    call, plan = explanation.call, explanation.plan
    assert isinstance(call, LookupCall)
    assert isinstance(plan, LookupPlan)
    features: list[dict[str, Any]] = [
        {
            "tensor": feature.tensor,
            "table": _tensor(table),
            "indices": _tensor(feature.indices),
            "pooling": feature.pooling,
            "output_shape": shape,
            "bytes_read": planned.indices * planned.row_bytes,
        }
        for feature, table, planned, shape in zip(
            call.features, explanation.data, plan.features, plan.shapes, strict=True
        )
    ]
    shards = explanation.shards
    for feature, needed in zip(features, shards, strict=True) if shards else ():
        feature["shards"] = needed
    return {"features": features}


def _plan(plan: Plan) -> dict[str, Any]:
    """What the operator comes down to."""
    return {
        "plan": {
            "batches": plan.batches,
            "tuples": plan.tuples,
            "dims": plan.dims,
            "slice_items": plan.slice_items,
            "item_size": plan.item_size,
            "shared": plan.broadcast_indices,
            "wrap": plan.wrap,
        }
    }


def _routes(decision: Decision) -> dict[str, Any]:
    """The size that decided, the routes with their thresholds, and the one that was chosen."""
    choice = decision.choice
    return {
        "size": size_body(decision.size),
        "routes": [
            {"route": each.route, "open": each.is_open, "reason": each.reason}
            | ({} if each.threshold is None else {"threshold": size_body(each.threshold)})
            for each in decision.routes
        ],
        "choice": {"route": choice.route, "parts": choice.parts},
    }


def size_body(size: Size) -> dict[str, int | None]:
    """A size or a threshold in JSON; null if no number reaches it."""
    return {name: None if isinf(number) else int(number) for name, number in size._asdict().items()}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    size = None if tensor.dtype.kind == "string" else nbytes(tensor.dtype, tensor.shape)
    return {"dtype": tensor.dtype.name, "shape": tensor.shape, "bytes": size}

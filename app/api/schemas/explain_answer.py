"""The response to `?explain=true`: the plan, each route with its threshold, and the chosen route, but no values.

It has the same format as a gather's response, so that generated clients have one type for both.
"""

from __future__ import annotations

from math import isinf
from typing import Any, Final

from app.dispatch.choose_backend import Decision, Size
from app.operators.gather_plan import Plan
from app.operators.lookup_plan import LookupPlan
from app.services.runner import Explanation
from app.tensors.by_key import KEYS
from app.tensors.lookup_call import LookupCall
from app.tensors.tensor import Tensor, nbytes

NOT_CHECKED: Final = "The values of the indices were not checked: one of them may be out of bounds."
LOOKUP_NOT_CHECKED: Final = "The values of indices and offsets were not checked: one of them may be wrong."


def explanation_body(explanation: Explanation) -> dict[str, Any]:
    """Return the JSON body of an explanation.

    For a sparse gradient, the body has no output, and `output_bytes` is only an upper bound.
    """
    call, outputs, plan, decision = explanation.call, explanation.outputs, explanation.plan, explanation.decision
    strings = any(dtype.kind == "string" for dtype, _ in outputs.values())
    found = {
        "operator": call.operator,
        **(_features(explanation) if isinstance(call, LookupCall) else _inputs(explanation)),
        "output_bytes": None if strings else plan.output_bytes,
        **({} if isinstance(plan, LookupPlan) else _plan(plan)),
        **_routes(decision),
    }
    shown: dict[str, Any] = {name: {"dtype": dtype.name, "shape": shape} for name, (dtype, shape) in outputs.items()}
    if isinstance(call, LookupCall):
        given = shown if call.concat else {"outputs": [*shown.values()]}
        named = zip(call.features, explanation.residents, strict=True)
        features = [{"tensor": one.tensor, "data_etag": read.etag, "version": read.data_version} for one, read in named]
        return {**given, "features": features, "explanation": found | {"not_checked": LOOKUP_NOT_CHECKED}}
    said: dict[str, Any] = {"dialect": call.dialect, "device": decision.device}
    for one in explanation.residents:
        said |= {"data_etag": one.etag, "version": one.data_version}
    if explanation.shards:
        found["shards"] = explanation.shards[0]
    return {**shown, **said, "explanation": found | {"not_checked": NOT_CHECKED}}


def _inputs(explanation: Explanation) -> dict[str, Any]:
    """Return the inputs of an operator, including the names of those that are resident tensors."""
    return {
        name: _tensor(tensor) | ({"tensor": given} if isinstance(given, str) else {})
        for name, (tensor, given) in explanation.inputs.items()
    }


def _features(explanation: Explanation) -> dict[str, Any]:
    """Return what each feature of a lookup reads and writes."""
    call, plan = explanation.call, explanation.plan
    assert isinstance(call, LookupCall)
    assert isinstance(plan, LookupPlan)
    features: list[dict[str, Any]] = [
        {
            "tensor": feature.tensor,
            "table": _tensor(table),
            KEYS if feature.by_key else "indices": _tensor(feature.indices),
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
    """Return the plan of the operator as a gather."""
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
    """Return the size that determined the choice, the routes with their thresholds, and the chosen route."""
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
    """Return the JSON form of a size or a threshold; null for a threshold that is never reached."""
    return {name: None if isinf(number) else int(number) for name, number in size._asdict().items()}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    size = None if tensor.dtype.kind == "string" else nbytes(tensor.dtype, tensor.shape)
    return {"dtype": tensor.dtype.name, "shape": tensor.shape, "bytes": size}

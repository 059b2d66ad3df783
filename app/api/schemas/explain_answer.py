"""What `?explain=true` answers: an answer without values, and with the plan, the time of each route and the choice.

It has the form of a gather's answer, so that generated clients have one type for both.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from app.backward_service import BackwardExplanation
from app.dispatch.choose_backend import Decision
from app.lookup_service import LookupExplanation
from app.operators.gather_plan import Plan
from app.service import Explanation
from app.tensors.lookup_call import LOOKUP
from app.tensors.tensor import Tensor, nbytes

NOT_CHECKED: Final = "The values of the indices were not checked: one of them may be out of bounds."
LOOKUP_NOT_CHECKED: Final = "The values of indices and offsets were not checked: one of them may be wrong."


def explanation_body(explanation: Explanation) -> dict[str, Any]:
    """The JSON body; times are microseconds, null where none is predicted."""
    call, data, shape, plan, decision, resident, shards = explanation
    strings = data.dtype.kind == "string"
    found = {
        "operator": call.operator,
        "data": _tensor(data) | ({"tensor": call.data} if isinstance(call.data, str) else {}),
        "indices": _tensor(call.indices),
        **({} if call.updates is None else {"updates": _tensor(call.updates)}),
        "output_bytes": None if strings else plan.output_bytes,
        **_plan(plan, decision),
        **({} if shards is None else {"shards": shards}),
        "not_checked": NOT_CHECKED,
    }
    output = {"dtype": data.dtype.name, "shape": shape}
    named = {} if resident is None else {"data_etag": resident.etag, "version": resident.data_version}
    return {"output": output, "dialect": call.dialect, "device": decision.device, **named, "explanation": found}


def backward_explanation_body(explanation: BackwardExplanation) -> dict[str, Any]:
    """The same for a gradient: without its values, and of a sparse one with the most bytes that it may have."""
    call, data, plan, decision = explanation
    found = {
        "operator": call.operator,
        "data": _tensor(data) | ({"tensor": call.shape} if isinstance(call.shape, str) else {}),
        "indices": _tensor(call.indices),
        "grad_output": _tensor(call.grad_output),
        "output_bytes": plan.output_bytes,
        **_plan(plan, decision),
        "not_checked": NOT_CHECKED,
    }
    dense = {} if plan.sparse else {"grad_data": {"dtype": data.dtype.name, "shape": data.shape}}
    return {**dense, "dialect": call.dialect, "device": decision.device, "explanation": found}


def _plan(plan: Plan, decision: Decision) -> dict[str, Any]:
    """What the operator comes down to, and where it would run."""
    return {
        "plan": {
            "batches": plan.batches,
            "tuples": plan.tuples,
            "dims": plan.dims,
            "slice_items": plan.slice_items,
            "item_size": plan.item_size,
            "shared": plan.broadcast_indices,
            "wrap": plan.wrap,
        },
        **_routes(decision),
    }


def lookup_explanation_body(explanation: LookupExplanation) -> dict[str, Any]:
    """The same for a lookup: of each feature what it reads and writes, of all together where they would run."""
    call, residents, plan, decision, shards = explanation
    features: list[dict[str, Any]] = [
        {
            "tensor": feature.tensor,
            "table": _tensor(resident.tensor),
            "indices": _tensor(feature.indices),
            "pooling": feature.pooling,
            "output_shape": shape,
            "bytes_read": planned.indices * planned.row_bytes,
        }
        for feature, resident, planned, shape in zip(call.features, residents, plan.features, plan.shapes, strict=True)
    ]
    for feature, needed in zip(features, shards or (), strict=bool(shards)):
        feature["shards"] = needed
    outputs = [{"dtype": dtype.name, "shape": shape} for dtype, shape in plan.outputs]
    found = {
        "operator": LOOKUP,
        "features": features,
        "output_bytes": None if any(dtype.kind == "string" for dtype, _ in plan.outputs) else plan.output_bytes,
        **_routes(decision),
        "not_checked": LOOKUP_NOT_CHECKED,
    }
    etags = [
        {"tensor": feature.tensor, "data_etag": resident.etag, "version": resident.data_version}
        for feature, resident in zip(call.features, residents, strict=True)
    ]
    given = {"output": outputs[0]} if call.concat else {"outputs": outputs}
    return {**given, "features": etags, "explanation": found}


def _routes(decision: Decision) -> dict[str, Any]:
    """The routes of a decision, and the one that was chosen."""
    choice = decision.choice
    return {
        "routes": [
            {"route": each.route, "open": each.closed is None, "microseconds": _microseconds(each.seconds)}
            | ({} if each.closed is None else {"reason": each.closed})
            for each in decision.routes
        ],
        "choice": {
            "route": choice.route,
            "parts": choice.parts,
            "microseconds": _microseconds(choice.seconds),
        },
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    size = None if tensor.dtype.kind == "string" else nbytes(tensor.dtype, tensor.shape)
    return {"dtype": tensor.dtype.name, "shape": tensor.shape, "bytes": size}


def _microseconds(seconds: float) -> float | None:
    return round(seconds * 1e6, 3) if isfinite(seconds) else None

"""The routes of the operators, of their gradients and of lookups; `app.api.exchange` answers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from app.api.route_rows.operation import (
    GATHER,
    Answers,
    Described,
    Operation,
    Route,
    Shown,
    answers_of,
    content,
    header,
    requests_of,
)
from app.api.schemas import examples
from app.api.schemas.answers import BackwardAnswer, GatherAnswer, LookupAnswer
from app.errors import Code
from app.operators.registry import ROWS, Gradient, Lookup, Operator
from app.requests.schemas.lookup_request import LookupRequest
from app.requests.schemas.operator_request import operator_request
from app.requests.schemas.query_fields import ExplainQuery, query_parameters
from app.security.authorizer import Access
from app.tensors.by_key import FOUND, KEYS
from app.tensors.operator_signature import Kind

_CODES: Final[tuple[Code, ...]] = (
    "tensor_not_found", "payload_too_large", "unsupported_media_type", "unsupported_dtype",
    "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded", "deadline_exceeded",
)  # fmt: skip
_OF_RESIDENT: Final[tuple[Code, ...]] = ("shard_unavailable", "tensor_damaged", "not_implemented")
_DIALECT: Final = {"X-Gathernd-Dialect": header("The dialect whose rules were applied; binary answers only.")}
_DEVICE: Final = {"X-Gathernd-Device": header("Where the gather ran, cpu or gpu; binary answers only.")}
_READ: Final = {
    "X-Gathernd-Data-ETag": header("ETag of the resident tensor that was read; binary answers only."),
    "X-Gathernd-Data-Version": header("Number of the version that was read; binary answers only."),
}
_REPLACED: Final = {
    "X-Gathernd-Replaced": header(
        "How many components of the indices were out of bounds; binary answers only, and not under out_of_bounds error."
    )
}
_MISSING: Final = {"X-Gathernd-Missing": header("Number of keys that the table lacks; binary answers to keys only.")}
_OR_FOUND: Final = f", and `{FOUND}` if the request asks for it"
_RESIDENT: Final = f"Rows of the resident tensor {examples.RESIDENT_NAME!r}, uploaded earlier"


def _answer(text: str, headers: Described, shown: Shown, binary: str) -> Answers:
    return {200: {"description": text, "headers": headers, **content(answers_of(shown), binary)}}


def _operator(row: Operator) -> Operation:
    gathers = row.signature.kind == "gather"
    shown = {**examples.REQUESTS[row.name], "resident": (_RESIDENT, *examples.RESIDENT[row.name])}
    others = " and ".join(f"`{name}`" for name in row.signature.inputs if name != "data")
    if row.signature.keyed:
        others += f", or `{KEYS}` in place of `indices`"
    return Operation(
        row.operation,
        row.summary,
        (*_CODES, *_OF_RESIDENT, "device_unavailable", *row.codes),
        tuple(query_parameters(operator_request(row.signature))),
        body=operator_request(row.signature),
        request=content(
            requests_of(shown),
            f"A safetensors body with the tensors `data` (left out where the query names a resident tensor) and "
            f"{others}; complex128 and string travel in JSON only.",
        ),
        answer=GatherAnswer,
        answers=_answer(
            "The gathered tensor" if gathers else "The data with the updates",
            _DIALECT | _DEVICE | _READ | (_REPLACED if gathers else {}) | (_MISSING if row.signature.keyed else {}),
            shown,
            f"A safetensors body with the tensor `output`{_OR_FOUND if row.signature.keyed else ''}.",
        ),
        tag=row.signature.kind,
    )


def _gradient(row: Gradient) -> Operation:
    shown = examples.GRADIENTS[row.name]
    return Operation(
        row.operation,
        row.summary,
        (*_CODES, "device_unavailable", *row.codes),
        tuple(query_parameters(operator_request(row.signature))),
        body=operator_request(row.signature),
        request=content(requests_of(shown), "A safetensors body with the tensors `indices` and `grad_output`."),
        answer=BackwardAnswer,
        answers=_answer(
            "The gradient",
            _DIALECT | _DEVICE,
            shown,
            "A safetensors body with the tensor `grad_data`, or with `grad_indices` and `grad_values`.",
        ),
        tag="gather",
    )


def _lookup(row: Lookup) -> Operation:
    return Operation(
        row.operation,
        row.summary,
        (*_CODES, *_OF_RESIDENT, *row.codes),
        tuple(query_parameters(ExplainQuery)),
        body=LookupRequest,
        request=content(
            requests_of(examples.LOOKUPS),
            "A safetensors body with the tensors `0.indices` or `0.keys`, `0.offsets`, `0.weights`, `1.indices` and so "
            "on, one group for each feature, and in the header's `__metadata__` the text `lookup`: the JSON of the "
            "request without these arrays.",
        ),
        answer=LookupAnswer,
        answers=_answer(
            "The rows, or what was pooled of them",
            {
                "X-Gathernd-Device": header("Where the lookup ran, cpu; binary answers only."),
                "X-Gathernd-Replaced": header(
                    "How many indices were out of bounds; binary answers only, and not under out_of_bounds error."
                ),
                **_MISSING,
            },
            examples.LOOKUPS,
            "A safetensors body with the tensor `output`, or `0.output`, `1.output` and so on, `0.found` of a feature "
            "that asks for it, and in `__metadata__` "
            "the text `lookup`: what a JSON answer says beside its outputs.",
        ),
        tag="gather",
    )


_OPERATIONS: Final[Mapping[Kind, Callable[[Any], Operation]]] = {
    "gather": _operator,
    "scatter": _operator,
    "gradient": _gradient,
    "lookup": _lookup,
}
OPERATOR_ROUTES: Final = tuple(
    Route(row.path, GATHER, Access.GATHER, {"POST": _OPERATIONS[row.signature.kind](row)}) for row in ROWS.values()
)

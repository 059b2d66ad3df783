"""The routes for operators, their gradients, and lookups; `app.api.exchange` handles them."""

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
_DIALECT: Final = {"X-Gathernd-Dialect": header("Dialect whose rules were applied; in binary responses only.")}
_DEVICE: Final = {"X-Gathernd-Device": header("Device that ran the gather, cpu or gpu; in binary responses only.")}
_READ: Final = {
    "X-Gathernd-Data-ETag": header("ETag of the resident tensor that was read; in binary responses only."),
    "X-Gathernd-Data-Version": header("Number of the version that was read; in binary responses only."),
}
_REPLACED: Final = {
    "X-Gathernd-Replaced": header(
        "Number of index components that were out of bounds, unless that is an error; in binary responses only."
    )
}
_MISSING: Final = {
    "X-Gathernd-Missing": header(
        "Number of keys that the table lacks, if the request has keys; in binary responses only."
    )
}
_OR_FOUND: Final = f", and `{FOUND}` if requested"
_RESIDENT: Final = f"Rows of the resident tensor {examples.RESIDENT_NAME!r}, uploaded earlier"


def _answer(text: str, headers: Described, shown: Shown, binary: str) -> Answers:
    return {200: {"description": text, "headers": headers, **content(answers_of(shown), binary)}}


def _operator(row: Operator) -> Operation:
    gathers = row.signature.kind == "gather"
    shown = {**examples.REQUESTS[row.name], "resident": (_RESIDENT, *examples.RESIDENT[row.name])}
    others = " and ".join(f"`{name}`" for name in row.signature.inputs if name != "data")
    if row.signature.keyed:
        others += f", or `{KEYS}` instead of `indices`"
    return Operation(
        row.operation,
        row.summary,
        (*_CODES, *_OF_RESIDENT, "device_unavailable", *row.codes),
        tuple(query_parameters(operator_request(row.signature))),
        body=operator_request(row.signature),
        request=content(
            requests_of(shown),
            f"A safetensors body with the tensors `data` (unless the query names a resident tensor) and {others}. "
            "complex128 and string require JSON.",
        ),
        answer=GatherAnswer,
        answers=_answer(
            "The gathered tensor" if gathers else "The updated copy of the data",
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
            "A safetensors body with a group of tensors for each feature: `0.indices` or `0.keys`, `0.offsets`, "
            "`0.weights`, then `1.indices` and so on. The text `lookup` in the header's `__metadata__` is the JSON of "
            "the request without these arrays.",
        ),
        answer=LookupAnswer,
        answers=_answer(
            "The rows or pooled rows",
            {
                "X-Gathernd-Device": header("Device that ran the lookup, cpu; in binary responses only."),
                "X-Gathernd-Replaced": header(
                    "Number of indices that were out of bounds, unless that is an error; in binary responses only."
                ),
                **_MISSING,
            },
            examples.LOOKUPS,
            "A safetensors body with the tensor `output`, or `0.output`, `1.output` and so on, and `0.found` if "
            "feature 0 requests it. The text `lookup` in `__metadata__` is the JSON response without its outputs.",
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

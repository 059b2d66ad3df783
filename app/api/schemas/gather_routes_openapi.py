"""The routes of the operators as OpenAPI and generated clients see them; `app.api.exchange` answers them."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from fastapi import FastAPI

from app.api.openapi_document import EVERYWHERE, operation, problem_responses
from app.api.schemas import binary_format_openapi, examples
from app.api.schemas.gather_answer import GatherAnswer
from app.errors import CODES, Code
from app.operators.registry import OPERATORS, Operator
from app.requests.schemas.operator_request import operator_query, operator_request
from app.requests.schemas.query_fields import query_parameters

GATHER_ERRORS: Final[tuple[Code, ...]] = (
    *EVERYWHERE, "unauthorized", "tensor_not_found", "payload_too_large", "unsupported_media_type", "invalid_field",
    "unsupported_dtype", "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded",
    "device_unavailable", "overloaded", "not_ready", "deadline_exceeded", "shard_unavailable",
    "tensor_damaged", "not_implemented",
)  # fmt: skip
"""Errors of every operator, beside those of its rules."""
_RESIDENT: Final = f"Rows of the resident tensor {examples.RESIDENT_NAME!r}, which was uploaded before"


def add_operator_routes(app: FastAPI) -> None:
    """Describe the route of every operator."""
    for operator in OPERATORS.values():
        _add_operator(app, operator)


def _add_operator(app: FastAPI, operator: Operator) -> None:
    def answer(body: Any) -> NoReturn:
        raise AssertionError("answered by the data plane")

    answer.__annotations__["body"] = operator_request(operator.signature)
    describe = operation(
        app,
        operator.operation,
        tags=[operator.signature.kind],
        summary=operator.summary,
        response_model=GatherAnswer,
        responses=_operator_responses(operator),
        openapi_extra=_operator_extra(operator),
    )
    describe(answer)


def _operator_extra(operator: Operator) -> dict[str, Any]:
    shown = examples.REQUESTS[operator.name]
    requests = {name: {"summary": text, "value": body} for name, (text, body, _) in shown.items()}
    requests["resident"] = {"summary": _RESIDENT, "value": examples.RESIDENT[operator.name][0]}
    return {
        "parameters": query_parameters(operator_query(operator.signature)),
        "requestBody": {
            "content": {"application/json": {"examples": requests}}
            | binary_format_openapi.request_content(operator.signature)
        },
    }


def _operator_responses(operator: Operator) -> dict[int | str, dict[str, Any]]:
    shown = examples.REQUESTS[operator.name]
    answers = {name: {"summary": text, "value": answer} for name, (text, _, answer) in shown.items()}
    answers["resident"] = {"summary": _RESIDENT, "value": examples.RESIDENT[operator.name][1]}
    ok: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The gathered tensor"
            if operator.signature.kind == "gather"
            else "The data with the updates",
            "headers": binary_format_openapi.answer_headers(replaced=operator.signature.kind == "gather"),
            "content": {"application/json": {"examples": answers}} | binary_format_openapi.answer_content(),
        }
    }
    return ok | problem_responses(code for code in CODES if code in {*GATHER_ERRORS, *operator.codes})

"""The routes of gradients as OpenAPI and generated clients see them; `app.api.exchange` answers them."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from fastapi import FastAPI

from app.api.openapi_document import EVERYWHERE, operation, problem_responses
from app.api.schemas import backward_examples, binary_format_openapi
from app.api.schemas.backward_answer import BackwardAnswer
from app.errors import CODES, Code
from app.operators.backward_registry import BACKWARDS, BackwardOperator
from app.requests.schemas.backward_request import backward_query, backward_request
from app.requests.schemas.query_fields import query_parameters

_CODES: Final[tuple[Code, ...]] = (
    *EVERYWHERE, "unauthorized", "tensor_not_found", "payload_too_large", "unsupported_media_type", "invalid_field",
    "unsupported_dtype", "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded",
    "device_unavailable", "overloaded", "not_ready", "deadline_exceeded",
)  # fmt: skip
_REQUEST: Final = "A safetensors body with the tensors `indices` and `grad_output`."
_ANSWER: Final = "A safetensors body with the tensor `grad_data`, or with `grad_indices` and `grad_values`."


def add_backward_routes(app: FastAPI) -> None:
    """Describe the route of every gradient."""
    for operator in BACKWARDS.values():
        _add(app, operator)


def _add(app: FastAPI, operator: BackwardOperator) -> None:
    def answer(body: Any) -> NoReturn:
        raise AssertionError("answered by the data plane")

    answer.__annotations__["body"] = backward_request(operator.signature)
    shown = backward_examples.REQUESTS[operator.name]
    requests = {name: {"summary": text, "value": body} for name, (text, body, _) in shown.items()}
    answers = {name: {"summary": text, "value": found} for name, (text, _, found) in shown.items()}
    headers = binary_format_openapi.answer_headers()
    ok: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The gradient",
            "headers": {name: headers[name] for name in ("X-Gathernd-Dialect", "X-Gathernd-Device")},
            "content": {"application/json": {"examples": answers}} | binary_format_openapi.content(_ANSWER),
        }
    }
    codes = {*_CODES, *operator.codes}
    describe = operation(
        app,
        operator.operation,
        tags=["gather"],
        summary=operator.summary,
        response_model=BackwardAnswer,
        responses=ok | problem_responses(code for code in CODES if code in codes),
        openapi_extra={
            "parameters": query_parameters(backward_query(operator.signature)),
            "requestBody": {
                "content": {"application/json": {"examples": requests}} | binary_format_openapi.content(_REQUEST)
            },
        },
    )
    describe(answer)

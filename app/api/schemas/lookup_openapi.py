"""The lookup as OpenAPI and generated clients see it; `app.api.exchange` answers it."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from fastapi import FastAPI
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.openapi_document import operation, problem_responses
from app.api.schemas import examples
from app.api.schemas.binary_format_openapi import MEDIA_TYPE
from app.api.schemas.gather_answer import (
    ExplainedChoice,
    ExplainedRoute,
    ExplainedShards,
    ExplainedTensor,
    OpenModel,
    OutputTensor,
)
from app.api.schemas.gather_routes_openapi import GATHER_ERRORS
from app.errors import CODES
from app.operators.lookup import CODES as LOOKUP_CODES
from app.requests.schemas.lookup_request import LookupRequest
from app.requests.schemas.members import Size
from app.requests.schemas.query_fields import ExplainQuery, query_parameters
from app.tensors.lookup_call import LOOKUP, Pooling

_BINARY: Final = {"type": "string", "format": "binary"}
_BODY: Final = (
    "A safetensors body with the tensors `0.indices`, `0.offsets`, `0.weights`, `1.indices` and so on, one group for "
    "each feature, and in the header's `__metadata__` the text `lookup`: the JSON of the request without these arrays."
)
_ANSWER: Final = (
    "A safetensors body with the tensor `output`, or `0.output`, `1.output` and so on, and in `__metadata__` the text "
    "`lookup`: what a JSON answer says beside its outputs."
)


class LookedUpTensor(OpenModel):
    """The resident tensor that a feature read."""

    tensor: str = Field(description="Its name, as the request has it.")
    data_etag: str = Field(description="ETag of the content that was read.")
    version: Size = Field(description="Number of the version that was read.")


class ExplainedFeature(OpenModel):
    """A feature of an explained lookup."""

    tensor: str = Field(description="Name of its resident tensor.")
    table: ExplainedTensor
    indices: ExplainedTensor
    pooling: Pooling
    output_shape: list[Size] = Field(description="Shape of its output, before outputs are joined.")
    bytes_read: Size = Field(description="Bytes of the rows that it reads.")
    shards: list[ExplainedShards] | SkipJsonSchema[None] = Field(
        None, description="Of a table in row ranges, those that are needed."
    )


class LookupExplanation(OpenModel):
    """What would run, where and why. Nothing has run."""

    operator: str
    features: list[ExplainedFeature]
    output_bytes: Size | None = Field(description="Bytes of all outputs' items; null for strings.")
    routes: list[ExplainedRoute]
    choice: ExplainedChoice
    not_checked: str = Field(description="What a lookup would still check.")


class LookupAnswer(OpenModel):
    """What a lookup answers: `output`, or `outputs` where the request says `concat` false; and what was read."""

    output: OutputTensor | SkipJsonSchema[None] = Field(None, description="The features' outputs, joined on axis 1.")
    outputs: list[OutputTensor] | SkipJsonSchema[None] = Field(
        None, description="The output of each feature, where they are not joined."
    )
    features: list[LookedUpTensor] = Field(description="What each feature read.")
    replaced: Size | SkipJsonSchema[None] = Field(
        None, description="How many indices were out of bounds, unless that is an error."
    )
    explanation: LookupExplanation | SkipJsonSchema[None] = Field(
        None, description="Instead of the outputs' values, where the request says `explain=true`."
    )


def add_lookup_route(app: FastAPI) -> None:
    """Describe `POST /lookup`."""
    requests = {name: {"summary": text, "value": body} for name, (text, body, _) in examples.LOOKUPS.items()}
    answers = {name: {"summary": text, "value": answer} for name, (text, _, answer) in examples.LOOKUPS.items()}
    ok: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The rows, or what was pooled of them",
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in (
                    ("X-Gathernd-Device", "Where the lookup ran, cpu; binary answers only."),
                    (
                        "X-Gathernd-Replaced",
                        "How many indices were out of bounds; binary answers only, and not under out_of_bounds error.",
                    ),
                )
            },
            "content": {
                "application/json": {"examples": answers},
                MEDIA_TYPE: {"schema": _BINARY | {"description": _ANSWER}},
            },
        }
    }
    codes = {*GATHER_ERRORS, *LOOKUP_CODES} - {"device_unavailable"}

    @operation(
        app,
        LOOKUP,
        tags=["gather"],
        summary="Rows of many resident tensors, single or as pooled bags",
        response_model=LookupAnswer,
        responses=ok | problem_responses(code for code in CODES if code in codes),
        openapi_extra={
            "parameters": query_parameters(ExplainQuery),
            "requestBody": {
                "content": {
                    "application/json": {"examples": requests},
                    MEDIA_TYPE: {"schema": _BINARY | {"description": _BODY}},
                }
            },
        },
    )
    async def lookup(body: LookupRequest) -> NoReturn:
        raise AssertionError("answered by the data plane")

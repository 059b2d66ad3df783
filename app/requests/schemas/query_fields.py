"""Fields in the query of a request with a binary body. A JSON request has the same fields in its body.

The model of the JSON request validates both; a field's `FromText` reads its value from the text of the query.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, Field, WithJsonSchema
from pydantic.fields import FieldInfo

from app.requests.schemas.common_fields import RESIDENT
from app.requests.schemas.gather_request import NamedTensor, Tensor
from app.requests.schemas.member_types import FromText, QueryText
from app.tensors.tensor_name import REFERENCE_PATTERN

_ONLY: Final = "Only with a safetensors body: a JSON request has this field in its body."
Explain = Annotated[Literal["true", "false"], WithJsonSchema({"type": "boolean"})]


class ExplainQuery(BaseModel):
    """Query parameters of a JSON request."""

    explain: Explain = Field(
        "false",
        description="If true, validate the request and return the output's type and shape; `explanation` has the plan, "
        "its size, the routes with their thresholds, and the choice. Nothing runs, and the values of the indices are "
        "not checked. The response is JSON for either kind of body. If omitted: false.",
    )


@lru_cache(64)
def field_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of the fields of a JSON body."""
    return tuple(_names(model))


@lru_cache(64)
def query_fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of the query, by name, for a request with a binary body.

    The body has the arrays. `tensor` specifies a resident tensor instead of `data`; a field named after another input
    does the same for that input. A request whose response has tensors may have `explain`.
    """
    fields: dict[str, FieldInfo] = {}
    own: dict[str, FieldInfo] = {}  # only the operator's fields
    base = getattr(model.__bases__[0], "model_fields", None) or model.model_fields
    for key, name in zip(model.model_fields, _names(model), strict=True):
        field = model.model_fields[key]
        into = fields if key in base else own
        forms = get_args(field.annotation)
        if NamedTensor in forms and name != "data":
            into[name] = NamedTensor.model_fields["tensor"]
        elif field.annotation is not Tensor and Tensor not in forms:
            into[name] = field
            if name == "device" and "data" in model.model_fields:
                fields["tensor"] = NamedTensor.model_fields["tensor"]
    if "output_encoding" in model.model_fields:
        fields["explain"] = ExplainQuery.model_fields["explain"]
    return fields | own


def value_of_text(field: FieldInfo, text: str) -> Any:
    """Return the value of a query parameter. Invalid text is returned as `QueryText`, which the model refuses."""
    way = from_text(field)
    if way is None:
        return text
    try:
        return way.parse(text)
    except ValueError:
        return QueryText(text)


def from_text(field: FieldInfo) -> FromText | None:
    """Return how to read the field from a query, or None if its value is text."""
    return next((found for found in field.metadata if isinstance(found, FromText)), None)


def query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return OpenAPI's query parameters. They show no defaults, because a request that sends them with a JSON body is
    refused.
    """
    shown = model.model_json_schema()["properties"] | ExplainQuery.model_json_schema()["properties"]
    named = NamedTensor.model_fields["tensor"]
    return [
        _parameter(name, field, _resident("data" if name == "tensor" else name) if field is named else shown[name])
        for name, field in (ExplainQuery.model_fields if model is ExplainQuery else query_fields_of(model)).items()
    ]


def _resident(name: str) -> dict[str, Any]:
    """Return the schema of a parameter that specifies a resident tensor."""
    described = f"{RESIDENT}, instead of `{name}` in the body."
    return {"type": "string", "pattern": REFERENCE_PATTERN, "description": described}


def _parameter(name: str, field: FieldInfo, shown: dict[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in shown.items() if key not in ("default", "title", "description")}
    way = from_text(field)
    described = (
        shown["description"] if name == "explain" else f"{shown['description']}{way.note if way else ''} {_ONLY}"
    )
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": described,
        "schema": (way.schema if way is not None else None) or schema,
    }


def _names(model: type[BaseModel]) -> Iterator[str]:
    return (field.alias or name for name, field in model.model_fields.items())

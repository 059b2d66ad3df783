"""The fields of a query: those of gathers and scatters in the native binary format, and what a JSON request may add."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema, create_model

from app.requests.schemas.dialect_fields import OUT_OF_BOUNDS_DESCRIPTION, dialect_fields, parameter_note
from app.requests.schemas.gather_request import FILL_VALUE_DESCRIPTION, PARAMETER_DESCRIPTIONS
from app.requests.schemas.members import ABSENT, RESIDENT, Detail, one_of
from app.requests.schemas.scatter_request import REDUCTION_DESCRIPTION
from app.tensors.gather_call import Device, Encoding, OutOfBounds
from app.tensors.operator_signature import Signature
from app.tensors.scatter_call import Reduction
from app.tensors.tensor_name import REFERENCE_PATTERN

_INTEGER: Final = re.compile(r"-?[0-9]+")
_MOST_DIGITS: Final = 4000
_HUGE: Final = 10**_MOST_DIGITS
_EXPLAIN: Final = (
    "With true, and with either body: validate, and answer in JSON what the output would be, without its values, and "
    "in `explanation` the plan, the time predicted for each route, and the choice. Nothing runs, and the values of the "
    "indices are not looked at. False if left out."
)
_ONLY: Final = "Only with a safetensors body; a JSON request has this field in its body."


def _integer(text: str) -> int:
    """The integer of a field, exactly, cut to ±10^4000."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("no integer")
    if len(text) > _MOST_DIGITS:
        digits = text.lstrip("-0")
        if len(digits) > _MOST_DIGITS:
            return -_HUGE if text[0] == "-" else _HUGE
        text = ("-" if text[0] == "-" else "") + (digits or "0")
    return int(text)


QueryInteger = Annotated[
    int,
    PlainValidator(_integer),
    WithJsonSchema({"type": "integer", "format": "int64"}),
    Detail("{name} must be an integer"),
]
Explain = Annotated[Literal["true", "false"], WithJsonSchema({"type": "boolean"})]


class QueryModel(BaseModel):
    """The fields of a query, by name, whose values are text; the reader of the query has refused unknown ones."""


ResidentName = Annotated[
    str,
    Detail(
        "a name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with none of . _ -, a version is a name, @ and a number"
    ),
]
_TENSOR: Final[Any] = Field(
    ABSENT, pattern=REFERENCE_PATTERN, description=f"{RESIDENT}, in place of `data` in the body. {_ONLY}"
)
_ENCODING: Final[Any] = Field(
    "values", description=f"Form of the output's items where Accept asks for JSON; values if left out. {_ONLY}"
)
_EXPLAIN_FIELD: Final[Any] = Field("false", description=_EXPLAIN)


class ExplainQuery(QueryModel):
    """What the query of a request to an operator in JSON may have."""

    explain: Explain = _EXPLAIN_FIELD


class GatherQuery(QueryModel):
    """The query of a gather in the native binary format: `parameter` and `dialect` are as its signature has them."""

    parameter: QueryInteger
    dialect: str
    device: Device = Field("auto", description=f"Where to run; auto if left out. {_ONLY}")
    tensor: ResidentName = _TENSOR
    output_encoding: Encoding = _ENCODING
    out_of_bounds: OutOfBounds = Field("error", description=f"{OUT_OF_BOUNDS_DESCRIPTION} error if left out. {_ONLY}")
    fill_value: str = Field(ABSENT, description=f"{FILL_VALUE_DESCRIPTION} JSON text. {_ONLY}")
    explain: Explain = _EXPLAIN_FIELD


class ScatterQuery(QueryModel):
    """The query of a scatter into a resident tensor in the native binary format."""

    reduction: Reduction = Field("none", description=_ONLY)


class ScatterCallQuery(QueryModel):
    """The query of a scatter with an output in the native binary format; `dialect` is as its signature has it."""

    reduction: Reduction = Field("none", description=f"{REDUCTION_DESCRIPTION} none if left out. {_ONLY}")
    dialect: str
    device: Device = Field("auto", description=f"Where to run; scatters run on the CPU. {_ONLY}")
    tensor: ResidentName = _TENSOR
    output_encoding: Encoding = _ENCODING
    explain: Explain = _EXPLAIN_FIELD


def _own_fields(signature: Signature) -> dict[str, Any]:
    """The fields of a query that depend on the operator: its parameter, if it has one, and its dialects."""
    fields: dict[str, Any] = {}
    if signature.parameter is not None:
        text = PARAMETER_DESCRIPTIONS[signature.parameter].removesuffix(".")
        described = f"{text}; 0 if left out.{parameter_note(signature)} {_ONLY}"
        fields["parameter"] = (QueryInteger, Field(0, alias=signature.parameter, description=described))
    fields |= dialect_fields(signature, QueryInteger, f" {_ONLY}")
    dialect = f"Whose rules hold; {signature.default_dialect} if left out. {_ONLY}"
    fields["dialect"] = (one_of(signature.dialects), Field(signature.default_dialect, description=dialect))
    return fields


@lru_cache(64)
def gather_query(signature: Signature) -> type[GatherQuery]:
    """The model of the query of a gather."""
    return create_model("GatherQuery", __base__=GatherQuery, __module__=__name__, **_own_fields(signature))


@lru_cache(64)
def scatter_call_query(signature: Signature) -> type[ScatterCallQuery]:
    """The model of the query of a scatter with an output."""
    return create_model("ScatterCallQuery", __base__=ScatterCallQuery, __module__=__name__, **_own_fields(signature))


@lru_cache(64)
def field_names(model: type[BaseModel]) -> tuple[str, ...]:
    """The names of the fields that a query or a body may have."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def query_parameters(model: type[QueryModel]) -> list[dict[str, Any]]:
    """OpenAPI's parameters for a query. They have no defaults there, since a client that sent those with a JSON body
    would be refused.
    """
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": field.pop("description"),
            "schema": {key: value for key, value in field.items() if key not in ("default", "title")},
        }
        for name, field in model.model_json_schema()["properties"].items()
    ]

"""JSON requests for gathers: the members that all operators share.

The schemas avoid unions, so that generated clients in statically typed languages compile: `values` is a flat list of
scalars, and alternatives are one object with optional members.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema

from app.requests.schemas.common_fields import (
    FILL_VALUE_DESCRIPTION,
    AnyDevice,
    AnyJson,
    Mode,
    OutputEncoding,
    ResidentName,
    Rounded,
)
from app.requests.schemas.member_types import (
    ABSENT,
    INT64,
    JSON_VALUE,
    DTypeName,
    JsonInteger,
    ListNumber,
    RequestModel,
    Shape,
    TextNumber,
)
from app.tensors.operator_signature import Parameter

_DTYPE: Final = "Element type."


class Tensor(RequestModel):
    """A typed tensor, with exactly one of `values` and `base64`."""

    dtype: DTypeName = Field(description=_DTYPE)
    shape: Shape = Field(ABSENT, description="Size of each dimension; [] is a scalar.")
    values: ListNumber = ABSENT
    base64: TextNumber = ABSENT


SEPARATE_TENSOR: Final = Tensor.model_construct(dtype="")
"""Placeholder in a document for a tensor that a binary format describes itself."""


class NamedTensor(RequestModel):
    """The name of a resident tensor, in place of a tensor."""

    tensor: ResidentName


class Data(Tensor):
    """The data: a typed tensor, or only `tensor`, the name of a resident tensor."""

    dtype: DTypeName = Field(ABSENT, description=_DTYPE)
    tensor: ResidentName = ABSENT


def _form_of_data(value: Any) -> str:
    return "NamedTensor" if type(value) is dict and "tensor" in value else "Tensor"


class _DataForms:
    """Data is a `Tensor` or a `NamedTensor`; OpenAPI shows the two as one object, `Data`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        forms = Annotated[Tensor, Tag("Tensor")] | Annotated[NamedTensor, Tag("NamedTensor")]
        # OpenAPI shows the schema for JSON text, although requests are actually validated as Python objects.
        return core_schema.json_or_python_schema(
            json_schema=handler.generate_schema(Data),
            python_schema=handler.generate_schema(Annotated[forms, Discriminator(_form_of_data)]),
        )


GivenData = Annotated[Tensor | NamedTensor, _DataForms()]
"""The `data` member of a request: a tensor, or the name of a resident tensor."""


class GatherRequest(RequestModel):
    """The members that all gathers share. The operator's signature defines `parameter` and `dialect`.

    Further inputs and parameters of the operator follow these.
    """

    data: GivenData
    indices: Tensor
    parameter: JsonInteger
    dialect: str
    device: AnyDevice = "auto"
    output_encoding: OutputEncoding = "values"
    out_of_bounds: Mode = "error"
    fill_value: Annotated[AnyJson, JSON_VALUE] = Field(
        ABSENT, description=f"{FILL_VALUE_DESCRIPTION} Written like one item of `values`."
    )
    output_dtype: Rounded = ABSENT


def parameter_field(parameter: Parameter, note: str = "", alias: str | None = None) -> Any:
    """Return the type and the field for a parameter of an operator; `note` is appended to its description."""
    described = parameter.description + note
    return JsonInteger, Field(parameter.default, alias=alias, description=described, json_schema_extra=INT64)


def parameter_values(parameters: tuple[Parameter, ...], fields: Any) -> tuple[int, ...]:
    """Return the values of an operator's parameters from validated fields."""
    if len(parameters) < 2:
        return (fields.parameter,) if parameters else ()
    return (fields.parameter, *(getattr(fields, parameter.name) for parameter in parameters[1:]))

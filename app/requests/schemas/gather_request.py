"""The JSON of a gather: the members that the requests of each operator have.

The forms are chosen so that generated clients of statically typed languages compile: flat `values` of any scalar, one
object with optional members in place of unions.
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


BESIDE: Final = Tensor.model_construct(dtype="")
"""Stands in a document for a tensor that a binary format describes itself."""


class NamedTensor(RequestModel):
    """The name of a resident tensor, in place of a tensor."""

    tensor: ResidentName


class Data(Tensor):
    """The data: a typed tensor, or `tensor` alone, the name of a resident one."""

    dtype: DTypeName = Field(ABSENT, description=_DTYPE)
    tensor: ResidentName = ABSENT


def _form_of_data(value: Any) -> str:
    return "NamedTensor" if type(value) is dict and "tensor" in value else "Tensor"


class _DataForms:
    """Data is a `Tensor` or a `NamedTensor`; OpenAPI shows the two as one object, `Data`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        forms = Annotated[Tensor, Tag("Tensor")] | Annotated[NamedTensor, Tag("NamedTensor")]
        # What OpenAPI shows is the side for JSON text, which nobody validates here.
        return core_schema.json_or_python_schema(
            json_schema=handler.generate_schema(Data),
            python_schema=handler.generate_schema(Annotated[forms, Discriminator(_form_of_data)]),
        )


GivenData = Annotated[Tensor | NamedTensor, _DataForms()]
"""The member `data` of a request: a tensor, or the name of a resident one."""


class GatherRequest(RequestModel):
    """The members of a gather, whichever its operator is: `parameter` and `dialect` are as its signature has them.

    Further inputs and parameters stand behind these.
    """

    data: GivenData
    indices: Tensor
    parameter: JsonInteger
    dialect: str
    device: AnyDevice = "auto"
    output_encoding: OutputEncoding = "values"
    out_of_bounds: Mode = "error"
    fill_value: Annotated[AnyJson, JSON_VALUE] = Field(
        ABSENT, description=f"{FILL_VALUE_DESCRIPTION} One value in the form of `values`."
    )
    output_dtype: Rounded = ABSENT


def parameter_field(parameter: Parameter, note: str = "", alias: str | None = None) -> Any:
    """The field of a model for a parameter of an operator; `note` ends its description."""
    described = parameter.description + note
    return JsonInteger, Field(parameter.default, alias=alias, description=described, json_schema_extra=INT64)


def parameter_values(parameters: tuple[Parameter, ...], fields: Any) -> tuple[int, ...]:
    """The values of an operator's parameters in valid fields."""
    if len(parameters) < 2:
        return (fields.parameter,) if parameters else ()
    return (fields.parameter, *(getattr(fields, parameter.name) for parameter in parameters[1:]))

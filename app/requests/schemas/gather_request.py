"""The JSON of a gather: the model of each operator's requests, made from its signature.

The forms are chosen so that generated clients of statically typed languages compile: flat `values` of any scalar, one
object with optional members in place of unions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import Discriminator, Field, GetCoreSchemaHandler, Tag, WithJsonSchema, create_model
from pydantic_core import CoreSchema, core_schema

from app.requests.schemas.dialect_fields import OUT_OF_BOUNDS_DESCRIPTION, dialect_fields, parameter_note
from app.requests.schemas.members import (
    ABSENT,
    JSON_VALUE,
    RESIDENT,
    DTypeName,
    JsonInteger,
    ListNumber,
    RequestModel,
    Shape,
    TensorName,
    TextNumber,
    one_of,
)
from app.tensors.gather_call import Device, Encoding, OutOfBounds, OutputDType
from app.tensors.operator_signature import Parameter, Signature

_DTYPE: Final = "Element type."
FILL_VALUE_DESCRIPTION: Final = (
    "With `out_of_bounds` fill, what slices are filled with; if left out 0, false or an empty string."
)

OUTPUT_DTYPE_DESCRIPTION: Final = (
    "The type of the output, for data of a float type: each item is rounded once, half to even. Data's own if left out."
)


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

    tensor: TensorName = Field(description=f"{RESIDENT}.")


class Data(Tensor):
    """The data: a typed tensor, or `tensor` alone, the name of a resident one."""

    dtype: DTypeName = Field(ABSENT, description=_DTYPE)
    tensor: TensorName = Field(ABSENT, description=f"{RESIDENT}.")


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
    device: Device = Field("auto", description="Where to run; `auto` lets the service choose.")
    output_encoding: Encoding = Field("values", description="Form of the output's items.")
    out_of_bounds: OutOfBounds = Field("error", description=OUT_OF_BOUNDS_DESCRIPTION)
    fill_value: Annotated[Any, WithJsonSchema({}), JSON_VALUE] = Field(
        ABSENT, description=f"{FILL_VALUE_DESCRIPTION} One value in the form of `values`."
    )
    output_dtype: OutputDType = Field(ABSENT, description=OUTPUT_DTYPE_DESCRIPTION)


FIRST_PARAMETER: Final = "parameter"
"""What models call the first parameter; further ones have their own names there too."""


def parameter_fields(parameters: tuple[Parameter, ...], note: str = "") -> dict[str, Any]:
    """The fields of a model for the parameters of an operator. `note` ends the description of the first."""
    fields: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name if fields else FIRST_PARAMETER
        fields[name] = (
            JsonInteger,
            Field(
                parameter.default,
                alias=None if fields else parameter.name,
                description=parameter.description + ("" if fields else note),
                json_schema_extra={"format": "int64"},
            ),
        )
    return fields


def parameter_values(parameters: tuple[Parameter, ...], fields: Any) -> tuple[int, ...]:
    """The values of an operator's parameters in valid fields."""
    if len(parameters) < 2:
        return (fields.parameter,) if parameters else ()
    return (fields.parameter, *(getattr(fields, parameter.name) for parameter in parameters[1:]))


def further_inputs(signature: Signature) -> dict[str, Any]:
    """The fields of a model for the inputs beside data and indices."""
    fields: dict[str, Any] = {}
    for name in signature.further:
        may_be_resident = GivenData if name in signature.residents else Tensor
        fields[name] = may_be_resident, Field(ABSENT if name in signature.optional else ...)
    return fields


@lru_cache(64)
def gather_request(signature: Signature) -> type[GatherRequest]:
    """The model of the requests of an operator."""
    name, text = signature.schema
    return create_model(
        name,
        __base__=GatherRequest,
        __module__=__name__,
        __doc__=text,
        **parameter_fields(signature.parameters, parameter_note(signature)),
        **dialect_fields(signature, JsonInteger),
        **further_inputs(signature),
        dialect=(one_of(signature.dialects), Field(signature.default_dialect, description="Whose rules hold.")),
    )

"""The JSON of a gather: the model of each operator's requests, made from its signature.

The forms are chosen so that generated clients of statically typed languages compile: flat `values` of any scalar, one
object with optional members in place of unions.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from app.tensors.operator_signature import OperatorName, Parameter, Signature

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
    """The members of a gather, whichever its operator is: `parameter` and `dialect` are as its signature has them."""

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


PARAMETER_DESCRIPTIONS: Final[Mapping[Parameter, str]] = {
    "batch_dims": "Leading dimensions that are batches.",
    "axis": "Axis that indices are positions on; negative counts from the back.",
}
_TITLES: Final[Mapping[OperatorName, tuple[str, str]]] = {
    "gathernd": (
        "GatherNDRequest",
        "A GatherND: each tuple in the last dimension of `indices` picks an element or slice of `data`.",
    ),
    "gather": ("GatherRequest", "A Gather: each entry of `indices` picks a slice of `data` along `axis`."),
    "gather_elements": (
        "GatherElementsRequest",
        "A GatherElements: each entry of `indices`, which has data's rank, picks one item of `data` along `axis`.",
    ),
}
"""Of each operator's requests: the name of the schema and what it says."""


def parameter_field(parameter: Parameter | None, note: str = "") -> dict[str, Any]:
    """The field `parameter` of a model of requests, which stands under its own name in them; none without one.

    `note` ends its description.
    """
    if parameter is None:
        return {}
    return {
        "parameter": (
            JsonInteger,
            Field(
                0,
                alias=parameter,
                description=PARAMETER_DESCRIPTIONS[parameter] + note,
                json_schema_extra={"format": "int64"},
            ),
        )
    }


@lru_cache(64)
def gather_request(signature: Signature) -> type[GatherRequest]:
    """The model of the requests of an operator."""
    name, text = _TITLES[signature.operator]
    return create_model(
        name,
        __base__=GatherRequest,
        __module__=__name__,
        __doc__=text,
        **parameter_field(signature.parameter, parameter_note(signature)),
        **dialect_fields(signature, JsonInteger),
        dialect=(one_of(signature.dialects), Field(signature.default_dialect, description="Whose rules hold.")),
    )

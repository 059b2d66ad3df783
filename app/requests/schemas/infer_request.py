"""The JSON of an infer request of the Open Inference Protocol.

The protocol requires servers to ignore unknown members. Optional members may be null, because clients of the protocol
send null; OpenAPI does not show this.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, create_model
from pydantic.json_schema import SkipJsonSchema
from pydantic.types import FailFast, Strict

from app.json_text.lossless_json import Number, integer
from app.requests.schemas.common_fields import (
    FILL_VALUE_DESCRIPTION,
    KEY_MEMBERS,
    MISSING_ROW_DESCRIPTION,
    RESIDENT,
    AnyDevice,
    Combined,
    Mode,
    dialect_field,
    dialect_fields,
    parameter_note,
)
from app.requests.schemas.gather_request import parameter_field
from app.requests.schemas.member_types import (
    ABSENT,
    BOOLEAN,
    JSON_TEXT,
    LOOKUP_TEXT,
    Detail,
    JsonInteger,
    JsonString,
    Needed,
    NotOffered,
    OrNull,
    Shape,
    TensorName,
    TooSmall,
    simplify_schema,
)
from app.tensors.dtypes import BY_OIP
from app.tensors.operator_signature import Parameter, Signature

_OUTPUT_OF_ANY_MODEL: Final[dict[str, Any]] = {"type": "string", "pattern": r"^([0-9]+\.)?(output|found)$"}
"""One schema for all models; the `lookup` model may have several outputs."""
_SIZES: Final[dict[str, Any]] = {"type": "array", "items": {"type": "integer", "minimum": 0, "format": "int64"}}
_FURTHER: Final = "Further settings by name; unknown ones are ignored."
_OBJECT: Final = Detail("parameters must be an object")


def _allow_more(schema: dict[str, Any]) -> None:
    simplify_schema(schema)
    schema["additionalProperties"] = True


class OpenRequestModel(BaseModel):
    """An object of an infer request; unknown members are ignored."""

    model_config = ConfigDict(extra="ignore", json_schema_extra=_allow_more)


def _null_out(value: Any) -> Any:
    raise ValueError("not offered")


def _none_but_false(value: Any) -> Any:
    if value and not (type(value) is Number and integer(value) == 0):
        raise ValueError("not offered")
    return value


Flag = Annotated[bool, Strict(), OrNull(), BOOLEAN]
Count = Annotated[JsonInteger, Field(ge=0), WithJsonSchema({"type": "integer", "minimum": 0, "format": "int64"})]
UnicodeString = Annotated[JsonString, Field(min_length=0), WithJsonSchema({"type": "string"})]
"""A string without lone surrogates. `min_length` makes pydantic check for them."""
Datatype = Annotated[JsonString, WithJsonSchema({"type": "string", "enum": list(BY_OIP)})]
"""The name of an element type. As with `DTypeName`, whether the type exists is checked after all members."""
SharedMemory = SkipJsonSchema[
    Annotated[Any, PlainValidator(_null_out), NotOffered("shared memory is not supported; send the items")]
]
Classification = SkipJsonSchema[
    Annotated[Any, AfterValidator(_none_but_false), NotOffered("classification of an output is not supported")]
]


class InferInputParameters(OpenRequestModel):
    """Further settings of an input by name; unknown ones are ignored."""

    shared_memory_region: SharedMemory = ABSENT
    binary_data_size: Annotated[Count, OrNull(), Detail("{name} must be an integer of 0 or more")] = Field(
        ABSENT, description="Number of bytes after the JSON that hold the items of this input."
    )


class InferInput(OpenRequestModel):
    """An input tensor. Its items are in `data`, or `parameters.binary_data_size` bytes after the JSON hold them."""

    name: Annotated[JsonString, Needed("an input needs a name, a string")] = Field(
        description="`data`, `indices`, or for a scatter `updates`. The model of a resident tensor accepts `indices` "
        "or `keys`. A lookup accepts `0.indices`, `0.offsets`, `0.weights`, `1.indices` and so on."
    )
    datatype: Annotated[Datatype, OrNull(), Detail("datatype must be a string")] = Field(
        ABSENT, description="Optional for the `indices` of a resident tensor, where it is INT64 by default."
    )
    shape: Annotated[Shape, OrNull(), WithJsonSchema(_SIZES)] = Field(
        ABSENT,
        description="Optional for the `indices` of a resident tensor if they are in `data`: by default it follows the "
        "nesting, and a flat list of n items has the shape [n, 1], n rows.",
    )
    parameters: Annotated[InferInputParameters, OrNull(), _OBJECT] = ABSENT
    data: Annotated[
        int,
        WithJsonSchema(
            {
                "type": "array",
                "items": {},
                "description": "The items, flat in row-major order or nested as in `shape`.",
            }
        ),
    ] = ABSENT


class OperatorInput(InferInput):
    """An input of an operator, which must be complete."""

    datatype: Annotated[Datatype, Needed("an input needs a datatype, a string")]
    shape: Annotated[Shape, Needed("an input needs a shape, a list of integers")]


class InferRequestedOutputParameters(OpenRequestModel):
    """Further settings of an output by name; unknown ones are ignored."""

    shared_memory_region: SharedMemory = ABSENT
    classification: Classification = ABSENT
    binary_data: Flag = Field(ABSENT, description="Whether to send its items after the JSON.")


class InferRequestedOutput(OpenRequestModel):
    """A requested output. `parameters.binary_data` says whether to send its items after the JSON."""

    name: Annotated[JsonString, WithJsonSchema(_OUTPUT_OF_ANY_MODEL), Needed("an output needs a name, a string")] = (
        Field(
            description="`output`, or `found` if requested. A lookup with `concat` false has `0.output`, `1.output` "
            "and so on."
        )
    )
    parameters: Annotated[InferRequestedOutputParameters, OrNull(), _OBJECT] = ABSENT


class InferRequestParameters(OpenRequestModel):
    """Parameters of every model. The model of an operator's JSON requests validates the operator's own parameters."""

    binary_data_output: Flag = Field(ABSENT, description="Whether to send the items of the outputs after the JSON.")
    fill_value: Annotated[JsonString, JSON_TEXT] = Field(ABSENT, description=f"{FILL_VALUE_DESCRIPTION} JSON text.")
    missing_row: Annotated[JsonString, JSON_TEXT] = Field(ABSENT, description=f"{MISSING_ROW_DESCRIPTION} JSON text.")
    timeout: Annotated[
        Count, Detail("{name} must be an integer"), TooSmall("{name} must be 0 or more microseconds")
    ] = Field(0, description="How long the caller waits, in microseconds; 0 means no limit.")


class LookupInferParameters(InferRequestParameters):
    """Parameters of the model `lookup`."""

    lookup: Annotated[
        JsonString,
        Needed("the parameter lookup is missing; it must be the JSON of the request without the arrays"),
        LOOKUP_TEXT,
    ]


class InferRequest(OpenRequestModel):
    """An infer request. Parameters: those of the model's operator (`batch_dims`, `axis`, `reduction`, `out_of_bounds`),
    `dialect`, `device`, `timeout` in microseconds, `binary_data_output`. The model `lookup` requires `lookup`, the JSON
    of a lookup without its arrays. Parameters of other models are errors; unknown ones are ignored."""

    id: Annotated[UnicodeString, OrNull(), Detail("id must be a string of Unicode")] = Field(
        ABSENT, description="Repeated in the response."
    )
    inputs: Annotated[
        list[Annotated[InferInput, Detail("an input must be an object")]],
        FailFast(),
        Detail("inputs must be a list of tensors"),
    ]
    parameters: Annotated[InferRequestParameters, OrNull(), _OBJECT] = ABSENT
    outputs: Annotated[
        list[Annotated[InferRequestedOutput, Detail("an output must be an object")]],
        FailFast(),
        OrNull(),
        Detail("outputs must be a list"),
    ] = ABSENT


class OperatorInferRequest(InferRequest):
    """An infer request to an operator, whose inputs must be complete."""

    inputs: Annotated[  # type: ignore[assignment]
        list[Annotated[OperatorInput, Detail("an input must be an object")]],
        FailFast(),
        Detail("inputs must be a list of tensors"),
    ]


class LookupInferRequest(OperatorInferRequest):
    """An infer request to the model `lookup`."""

    parameters: Annotated[LookupInferParameters, _OBJECT]


@lru_cache(64)
def infer_request(*signatures: Signature) -> type[InferRequest]:
    """Return the infer request for OpenAPI, with the parameters of all these operators."""
    dialects = dict.fromkeys(dialect for signature in signatures for dialect in signature.dialects)
    notes: dict[Parameter, str] = {}
    for signature in signatures:
        for parameter in signature.parameters:
            notes[parameter] = notes.get(parameter) or parameter_note(signature)
    own: dict[str, Any] = {parameter.name: parameter_field(parameter, note) for parameter, note in notes.items()}
    for signature in signatures:
        own = dialect_fields(signature) | own
    for name in dict.fromkeys(name for signature in signatures for name in signature.named_beside.values()):
        described = f"{RESIDENT}, instead of the input {'data' if name == 'tensor' else name}."
        own[name] = TensorName, Field(ABSENT, description=described)
    common: dict[str, Any] = {
        name: (field.annotation, field) for name, field in InferRequestParameters.model_fields.items()
    }
    fields: dict[str, Any] = {
        "binary_data_output": common["binary_data_output"],
        "dialect": dialect_field(dialects, signatures[0].default_dialect),
        "device": (AnyDevice, "auto"),
        "out_of_bounds": (Mode, "error"),
    }
    fields |= {name: field for name, field in common.items() if name not in fields} | own
    fields["reduction"] = Combined, "none"
    fields |= {name: member for name, member in KEY_MEMBERS.items() if name not in fields}
    parameters = create_model(
        "InferRequestParameters", __base__=OpenRequestModel, __module__=__name__, __doc__=_FURTHER, **fields
    )
    return create_model(
        "InferRequest",
        __base__=InferRequest,
        __module__=__name__,
        __doc__=InferRequest.__doc__,
        parameters=(Annotated[parameters, OrNull(), _OBJECT], ABSENT),
    )

"""The requests for the gradient of a gather: the model of the JSON, and that of the query of a binary one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, create_model
from pydantic.types import Strict

from app.errors import invalid_field
from app.requests.schemas.dialect_fields import dialect_fields, parameter_note
from app.requests.schemas.gather_request import PARAMETER_DESCRIPTIONS, Tensor, parameter_field
from app.requests.schemas.members import (
    ABSENT,
    BOOLEAN,
    FINITE,
    SIZES_TEXT,
    JsonInteger,
    RequestModel,
    Shape,
    TensorName,
    one_of,
)
from app.requests.schemas.query_fields import Explain, QueryInteger, QueryModel, ResidentName
from app.tensors.backward_call import BackwardName, BackwardSignature
from app.tensors.gather_call import Device, Encoding
from app.tensors.tensor_name import REFERENCE_PATTERN
from app.wire.json.lossless_json import Number

_SIZES: Final = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{1,40})*+)?")
_DECIMAL: Final = re.compile(r"[-+]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_MOST_CHARACTERS: Final = 4000
_DATA_SHAPE: Final = "Shape of the gather's data; exactly one of `data_shape` and `tensor`."
_TENSOR: Final = "Name of a resident tensor that has the shape of the gather's data, and grad_output's type."
_LDA_COEFF: Final = "What the sum is multiplied by, once, rounded to the type of the sum."
_SPARSE: Final = "Answer with the slices that an index names alone, `grad_indices` and `grad_values`; for {} 0 only."
_DEVICE: Final = "Where to run; gradients run on the CPU."
_ENCODING: Final = "Form of the answer's items."
_ONLY: Final = "Only with a safetensors body; a JSON request has this field in its body."


def _finite(value: Any) -> float:
    """The binary64 nearest to a JSON number."""
    if type(value) is Number:
        number = float(value.text)
    elif type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("no finite number") from None
    else:
        raise ValueError("no number")
    if not isfinite(number):
        raise ValueError("no finite number")
    return number


def _finite_text(text: str) -> float:
    """The binary64 nearest to a decimal number in a query."""
    if len(text) > _MOST_CHARACTERS or not _DECIMAL.fullmatch(text):
        raise ValueError("no number")
    return _finite(float(text))


def _sizes(text: str) -> tuple[int, ...]:
    """The sizes of a shape in a query, with commas between them."""
    if len(text) > _MOST_CHARACTERS or not _SIZES.fullmatch(text):
        raise ValueError("no sizes")
    return tuple(map(int, text.split(","))) if text else ()


_NUMBER: Final[dict[str, Any]] = {"type": "number", "format": "double"}
JsonFinite = Annotated[float, PlainValidator(_finite), WithJsonSchema(_NUMBER), FINITE]
QueryFinite = Annotated[float, PlainValidator(_finite_text), WithJsonSchema(_NUMBER), FINITE]
QueryShape = Annotated[
    tuple[int, ...],
    PlainValidator(_sizes),
    WithJsonSchema({"type": "string"}),
    SIZES_TEXT,
]
JsonBool = Annotated[bool, Strict(), BOOLEAN]
QueryBool = Annotated[Literal["true", "false"], WithJsonSchema({"type": "boolean"})]


class BackwardRequest(RequestModel):
    """The members of a gradient; `parameter`, `dialect` and `sparse` are as its signature has them."""

    indices: Tensor = Field(description="The gather's indices.")
    grad_output: Tensor = Field(
        description="The derivative of the loss by the gather's output, of that shape; a float type."
    )
    data_shape: Shape = Field(ABSENT, description=_DATA_SHAPE)
    tensor: TensorName = Field(ABSENT, description=_TENSOR)
    parameter: int
    lda_coeff: JsonFinite = Field(1.0, description=_LDA_COEFF)
    sparse: JsonBool = False
    dialect: str
    device: Device = Field("auto", description=_DEVICE)
    output_encoding: Encoding = Field("values", description=_ENCODING)


class BackwardQuery(QueryModel):
    """The query of a gradient in the native binary format."""

    data_shape: QueryShape = Field(ABSENT, description=f"{_DATA_SHAPE} Sizes with commas: `200000,64`. {_ONLY}")
    tensor: ResidentName = Field(ABSENT, pattern=REFERENCE_PATTERN, description=f"{_TENSOR} {_ONLY}")
    parameter: int
    lda_coeff: QueryFinite = Field(1.0, description=f"{_LDA_COEFF} 1 if left out. {_ONLY}")
    sparse: QueryBool = "false"
    dialect: str
    device: Device = Field("auto", description=f"{_DEVICE} {_ONLY}")
    output_encoding: Encoding = Field("values", description=f"{_ENCODING} Where Accept asks for JSON. {_ONLY}")
    explain: Explain = Field(
        "false",
        description="With true, and with either body: answer in JSON what would run, where and why, and run "
        "nothing. False if left out.",
    )


def check_one_shape(request: BackwardRequest | BackwardQuery, prefix: str = "") -> None:
    """Exactly one of `data_shape` and `tensor` is there. Raises invalid_field."""
    if (request.data_shape is ABSENT) != (request.tensor is ABSENT):
        return
    if request.tensor is ABSENT:
        raise invalid_field(
            f"{prefix}/data_shape",
            "neither data_shape nor tensor says which shape grad_data has",
            "Add 'data_shape', the shape of the gather's data, or 'tensor', the name of a resident one.",
        )
    raise invalid_field(
        f"{prefix}/tensor",
        "the shape of grad_data is given twice: by data_shape and by tensor",
        "Leave out 'data_shape' or 'tensor'.",
    )


_TITLES: Final[Mapping[BackwardName, tuple[str, str]]] = {
    "gathernd_backward": (
        "GatherNDBackwardRequest",
        "The gradient of a GatherND: each slice of `grad_output` is added at its index to zeros of the data's shape.",
    ),
    "gather_backward": (
        "GatherBackwardRequest",
        "The gradient of a Gather: each slice of `grad_output` is added at its index to zeros of the data's shape.",
    ),
}


def _batch_dims_field(signature: BackwardSignature, integer: Any, text: str = "") -> dict[str, Any]:
    """The field `batch_dims` beside the parameter, where a dialect has it."""
    return {name: field for name, field in dialect_fields(signature, integer, text).items() if name == "batch_dims"}


@lru_cache(8)
def backward_request(signature: BackwardSignature) -> type[BackwardRequest]:
    """The model of the JSON requests."""
    name, text = _TITLES[signature.operator]
    return create_model(
        name,
        __base__=BackwardRequest,
        __module__=__name__,
        __doc__=text,
        **parameter_field(signature.parameter, parameter_note(signature)),
        **_batch_dims_field(signature, JsonInteger),
        sparse=(JsonBool, Field(False, description=_SPARSE.format(signature.parameter))),
        dialect=(one_of(signature.dialects), Field(signature.default_dialect, description="Whose rules hold.")),
    )


@lru_cache(8)
def backward_query(signature: BackwardSignature) -> type[BackwardQuery]:
    """The model of the query of binary requests."""
    text = PARAMETER_DESCRIPTIONS[signature.parameter].removesuffix(".")
    described = f"{text}; 0 if left out.{parameter_note(signature)} {_ONLY}"
    sparse = f"{_SPARSE.format(signature.parameter)} False if left out. {_ONLY}"
    dialect = f"Whose rules hold; {signature.default_dialect} if left out. {_ONLY}"
    return create_model(
        "BackwardQuery",
        __base__=BackwardQuery,
        __module__=__name__,
        parameter=(QueryInteger, Field(0, alias=signature.parameter, description=described)),
        **_batch_dims_field(signature, QueryInteger, f" {_ONLY}"),
        sparse=(QueryBool, Field("false", description=sparse)),
        dialect=(one_of(signature.dialects), Field(signature.default_dialect, description=dialect)),
    )

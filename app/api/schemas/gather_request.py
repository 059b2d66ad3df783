"""The request and answer schemas of the native JSON routes, as OpenAPI and generated clients see them.

The data plane reads bodies itself (`app.wire.json.gather_messages`), since arrays must never become Python objects;
these models document what it accepts, and a test holds the two equal. The forms are chosen so that generated clients of
statically typed languages compile: flat `values` of any scalar, one object with optional members in place of unions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from app.tensors.operator_signature import OperatorName
from app.tensors.tensor_name import PATTERN

DTypeName = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "string",
]  # fmt: skip
_INT64: dict[str, JsonValue] = {"format": "int64"}
Size = Annotated[int, Field(ge=0, json_schema_extra=_INT64)]
Values = Annotated[
    list[Any],
    Field(
        description="The items in row-major order: numbers, true and false, strings, or [re, im] for complex types. "
        'Non-finite numbers are the strings "NaN", "Infinity" and "-Infinity". Lists nested as `shape` says are '
        "accepted too; then `shape` may be left out."
    ),
]
Base64 = Annotated[
    str,
    Field(
        description="The items' row-major little-endian bytes in base64: bool one byte, 0 or 1; strings each a "
        "little-endian uint32 length and then UTF-8."
    ),
]


def _tidy(schema: dict[str, Any]) -> None:
    """An optional member is simply not required: no null, and what holds without it in words.

    Generators take a default for a member that is always there: TypeScript would ask for it in every request.
    """
    for member in schema.get("properties", {}).values():
        default = member.pop("default", None)
        if default is not None:
            member["description"] += f" If left out: {default}."
        member.pop("title", None)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=_tidy)


class OpenModel(BaseModel):
    """Answers may gain members."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_tidy)


class Tensor(_Model):
    """A typed tensor, with exactly one of `values` and `base64`."""

    dtype: DTypeName = Field(description="Element type.")
    shape: list[Size] | SkipJsonSchema[None] = Field(None, description="Size of each dimension; [] is a scalar.")
    values: Values | SkipJsonSchema[None] = None
    base64: Base64 | SkipJsonSchema[None] = None


class Data(_Model):
    """The data: a typed tensor, or `tensor` alone, the name of a resident one."""

    dtype: DTypeName | SkipJsonSchema[None] = Field(None, description="Element type.")
    shape: list[Size] | SkipJsonSchema[None] = Field(None, description="Size of each dimension; [] is a scalar.")
    values: Values | SkipJsonSchema[None] = None
    base64: Base64 | SkipJsonSchema[None] = None
    tensor: str | SkipJsonSchema[None] = Field(None, description="Name of a resident tensor.", pattern=PATTERN)


class _Request(_Model):
    data: Data
    indices: Tensor
    device: Literal["auto", "cpu", "gpu"] = Field("auto", description="Where to run; `auto` lets the service choose.")
    output_encoding: Literal["values", "base64"] = Field("values", description="Form of the output's items.")


class GatherNDRequest(_Request):
    """A GatherND: each tuple in the last dimension of `indices` picks an element or slice of `data`."""

    batch_dims: int = Field(0, description="Leading dimensions that are batches.", json_schema_extra=_INT64)
    dialect: Literal["onnx-13", "onnx-12", "onnx-11", "openvino-8"] = Field("onnx-13", description="Whose rules hold.")


class GatherRequest(_Request):
    """A Gather: each entry of `indices` picks a slice of `data` along `axis`."""

    axis: int = Field(0, description="Axis to gather on; negative counts from the back.", json_schema_extra=_INT64)
    dialect: Literal["onnx-13", "onnx-11", "onnx-1"] = Field("onnx-13", description="Whose rules hold.")


class GatherElementsRequest(_Request):
    """A GatherElements: each entry of `indices`, which has data's rank, picks one item of `data` along `axis`."""

    axis: int = Field(0, description="Axis to gather on; negative counts from the back.", json_schema_extra=_INT64)
    dialect: Literal["onnx-13", "onnx-11"] = Field("onnx-13", description="Whose rules hold.")


REQUEST_MODELS: Final[Mapping[OperatorName, type[BaseModel]]] = {
    "gathernd": GatherNDRequest,
    "gather": GatherRequest,
    "gather_elements": GatherElementsRequest,
}
"""The JSON of each operator's requests."""


class OutputTensor(OpenModel):
    """The gathered tensor, with `values` or `base64` as the request asked."""

    dtype: DTypeName = Field(description="Element type, that of the data.")
    shape: list[Size] = Field(description="Size of each dimension.")
    values: Values | SkipJsonSchema[None] = None
    base64: Base64 | SkipJsonSchema[None] = None


_Bytes = Annotated[int, Field(ge=0, json_schema_extra=_INT64)]
Route = Literal["loop", "thread", "split", "gpu"]


class ExplainedTensor(OpenModel):
    """A tensor that takes part; `tensor` is the name of a resident one."""

    dtype: DTypeName
    shape: list[Size]
    bytes: _Bytes | None = Field(description="Bytes of its items; null for strings.")
    tensor: str | SkipJsonSchema[None] = None


class ExplainedPlan(OpenModel):
    """What the operator comes down to: data as [batches, dims, slice], indices as [batches or 1, tuples, len(dims)]."""

    batches: _Bytes
    tuples: _Bytes
    dims: list[Size]
    slice_items: _Bytes
    item_size: int = Field(
        description="Bytes of an item; of strings it is where they begin that is gathered, 8 bytes each."
    )
    shared: bool = Field(description="Whether all batches use the same tuples.")
    wrap: bool = Field(description="Whether a negative index counts from the end.")


class ExplainedRoute(OpenModel):
    """A way to run the gather: on the event loop, by a thread, split over threads, or by a GPU."""

    route: Route
    open: bool
    microseconds: float | None = Field(description="Predicted time; null where there is no prediction.")
    reason: str | SkipJsonSchema[None] = Field(None, description="Why it is not open.")


class ExplainedChoice(OpenModel):
    """The route that would be taken."""

    route: Route
    parts: int = Field(description="Over how many threads it is split.")
    microseconds: float | None = Field(description="Predicted time; null where there is no prediction.")


class Explanation(OpenModel):
    """What would run, where and why. Nothing has run."""

    operator: OperatorName
    data: ExplainedTensor
    indices: ExplainedTensor
    output_bytes: _Bytes | None = Field(description="Bytes of the output's items; null for strings.")
    plan: ExplainedPlan
    routes: list[ExplainedRoute]
    choice: ExplainedChoice
    not_checked: str = Field(description="What a gather would still check.")


class GatherAnswer(OpenModel):
    """What a gather answers, or would answer: with `explain=true` there is an explanation in place of the values."""

    output: OutputTensor
    dialect: str = Field(description="The dialect that was followed.")
    device: Literal["cpu", "gpu"] = Field(description="Where the gather ran.")
    data_etag: str | SkipJsonSchema[None] = Field(None, description="ETag of the resident data that was read.")
    explanation: Explanation | SkipJsonSchema[None] = Field(
        None, description="Instead of the output's values, where the request says `explain=true`."
    )


class RuleBody(OpenModel):
    """The operator's rule that was broken."""

    dialect: str
    clause: str | None = Field(description="Its number in the dialect's text; null where that numbers nothing.")
    text: str


class PlaceBody(OpenModel):
    """One place in the request that is wrong."""

    pointer: str = Field(description="JSON pointer into the request; /query/NAME for the query.")
    position: list[Size] | SkipJsonSchema[None] = Field(None, description="Coordinates within the tensor.")
    value: Any = Field(None, description="The wrong value; integers beyond 64 bits as text.")
    axis: Size | SkipJsonSchema[None] = Field(None, description="Axis of data.")
    size: Size | SkipJsonSchema[None] = Field(None, description="Size of that axis.")
    allowed: list[Annotated[int, Field(json_schema_extra=_INT64)]] | None = Field(
        None, description="Lowest and highest value allowed; null on an axis of size 0."
    )


class Problem(OpenModel):
    """An error (RFC 9457). `code` is from the closed catalogue at /errors."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    rule: RuleBody | SkipJsonSchema[None] = None
    errors: list[PlaceBody] | SkipJsonSchema[None] = Field(None, description="The first ten places.")
    total: Size | SkipJsonSchema[None] = Field(None, description="How many places there are in all.")
    limit: str | SkipJsonSchema[None] = Field(None, description="Name of the limit that was exceeded.")
    maximum: Size | SkipJsonSchema[None] = Field(None, description="Value of that limit.")
    request_id: str


class Ready(OpenModel):
    """The service is ready."""

    status: Literal["ready"]


class Live(OpenModel):
    """The process is alive."""

    status: Literal["live"]

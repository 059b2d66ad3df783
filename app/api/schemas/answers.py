"""Schemas for operator, gradient, lookup and error responses, for OpenAPI and generated clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from app.requests.schemas.member_types import BASE64, INT64, VALUES, DTypeName, Size, simplify_schema
from app.tensors.lookup_call import Pooling
from app.tensors.operator_signature import BackwardName, OperatorName

Values = Annotated[list[Any], Field(description=VALUES)]
Base64 = Annotated[str, Field(description=BASE64)]


class OpenModel(BaseModel):
    """A part of an answer; later versions may add members."""

    model_config = ConfigDict(extra="allow", json_schema_extra=simplify_schema)


class OutputTensor(OpenModel):
    """The output, with `values` or `base64` as requested."""

    dtype: DTypeName = Field(description="Element type, the same as the data's.")
    shape: list[Size] = Field(description="Size of each dimension.")
    values: Values | SkipJsonSchema[None] = None
    base64: Base64 | SkipJsonSchema[None] = None


Route = Literal["loop", "thread", "split", "gpu"]


class ExplainedTensor(OpenModel):
    """A tensor of the request; `tensor` is the name of a resident tensor."""

    dtype: DTypeName
    shape: list[Size]
    bytes: Size | None = Field(description="Size of its items in bytes; null for strings.")
    tensor: str | SkipJsonSchema[None] = None


class ExplainedPlan(OpenModel):
    """The operator as a gather: data as [batches, dims, slice], indices as [batches or 1, tuples, len(dims)]."""

    batches: Size
    tuples: Size
    dims: list[Size]
    slice_items: Size
    item_size: int = Field(description="Bytes of an item. Strings are gathered by their start positions, 8 bytes each.")
    shared: bool = Field(description="Whether all batches use the same tuples.")
    wrap: bool = Field(description="Whether negative indices count from the end.")


class ExplainedSize(OpenModel):
    """The size of a gather, or a threshold between two routes."""

    items: Size | None = Field(description="Number of gathered items; null in a threshold that is never reached.")
    bytes: Size | None = Field(description="Number of copied bytes; null in a threshold that is never reached.")


class ExplainedRoute(OpenModel):
    """A way to run the gather: on a GPU, split over threads, on the event loop, or on a thread."""

    route: Route
    open: bool
    reason: str = Field(description="Why it is open or not.")
    threshold: ExplainedSize | SkipJsonSchema[None] = Field(None, description="The size that decided, if any.")


class ExplainedChoice(OpenModel):
    """The chosen route."""

    route: Route
    parts: int = Field(description="Number of threads that share it.")


class ExplainedShards(OpenModel):
    """A range of rows that the gather needs, and the shards that hold it."""

    rows: list[Size] = Field(description="The first row, and the row after the last one.")
    tensor: str = Field(description="Its name on the shards.")
    replicas: list[str] = Field(description="Their addresses.")
    tuples: Size | None = Field(description="Number of index tuples that need it; null if all do.")


class Explanation(OpenModel):
    """What would run, on which route, and why. Nothing has run."""

    operator: OperatorName
    data: ExplainedTensor
    indices: ExplainedTensor | SkipJsonSchema[None] = Field(None, description="Absent if the request has `keys`.")
    keys: ExplainedTensor | SkipJsonSchema[None] = Field(None, description="Present if the request has `keys`.")
    updates: ExplainedTensor | SkipJsonSchema[None] = Field(None, description="Present in scatters.")
    output_bytes: Size | None = Field(description="Bytes of the output's items; null for strings.")
    plan: ExplainedPlan
    size: ExplainedSize
    routes: list[ExplainedRoute] = Field(description="In order of preference: the first open one is used.")
    choice: ExplainedChoice
    shards: list[ExplainedShards] | SkipJsonSchema[None] = Field(
        None, description="For a table in row ranges: the ranges that are needed."
    )
    not_checked: str = Field(description="What running the request would check in addition.")


class GatherAnswer(OpenModel):
    """The answer of a gather. With `explain=true` an explanation replaces the values."""

    output: OutputTensor
    dialect: str = Field(description="The dialect whose rules were applied.")
    device: Literal["cpu", "gpu"] = Field(description="Device that ran the gather.")
    data_etag: str | SkipJsonSchema[None] = Field(
        None, description="ETag of the resident tensor that was read, or would be."
    )
    version: Size | SkipJsonSchema[None] = Field(
        None, description="Number of the version that was read, or would be read."
    )
    replaced: Size | SkipJsonSchema[None] = Field(
        None, description="Number of index components that were out of bounds, unless that is an error."
    )
    missing: Size | SkipJsonSchema[None] = Field(
        None, description="Number of keys that the table lacks, if the request has keys."
    )
    found: OutputTensor | SkipJsonSchema[None] = Field(
        None, description="A bool for each key: whether the table has it. Present if the request sets `found`."
    )
    explanation: Explanation | SkipJsonSchema[None] = Field(
        None, description="Replaces the output's values if the request has `explain=true`."
    )


class ExplainedBackward(OpenModel):
    """What would run, on which route, and why. Nothing has run."""

    operator: BackwardName
    data: ExplainedTensor = Field(description="The gather's data, given by its shape only.")
    indices: ExplainedTensor
    grad_output: ExplainedTensor
    output_bytes: Size = Field(description="Bytes of the response's items; for a sparse gradient, an upper bound.")
    plan: ExplainedPlan
    size: ExplainedSize
    routes: list[ExplainedRoute] = Field(description="In order of preference: the first open one is used.")
    choice: ExplainedChoice
    not_checked: str = Field(description="What running the request would check in addition.")


class BackwardAnswer(OpenModel):
    """The gradient: `grad_data`, or `grad_indices` and `grad_values` if the request has `sparse`."""

    grad_data: OutputTensor | SkipJsonSchema[None] = Field(None, description="Has the shape of the gather's data.")
    grad_indices: OutputTensor | SkipJsonSchema[None] = Field(
        None, description="int64; the distinct index tuples, non-negative and ascending."
    )
    grad_values: OutputTensor | SkipJsonSchema[None] = Field(
        None, description="The gradient slice of each of these tuples."
    )
    dialect: str = Field(description="The dialect whose rules were applied.")
    device: Literal["cpu"] = Field(description="Device that ran it.")
    explanation: ExplainedBackward | SkipJsonSchema[None] = Field(
        None, description="Replaces the values if the request has `explain=true`."
    )


class LookedUpTensor(OpenModel):
    """The resident tensor that a feature read."""

    tensor: str = Field(description="Its name, as in the request.")
    data_etag: str = Field(description="ETag of the content that was read.")
    version: Size = Field(description="Number of the version that was read.")
    found: OutputTensor | SkipJsonSchema[None] = Field(
        None, description="A bool for each key: whether the table has it. Present if the feature sets `found`."
    )


class ExplainedFeature(OpenModel):
    """A feature of an explained lookup."""

    tensor: str = Field(description="Name of its resident tensor.")
    table: ExplainedTensor
    indices: ExplainedTensor | SkipJsonSchema[None] = Field(None, description="Absent if the feature has `keys`.")
    keys: ExplainedTensor | SkipJsonSchema[None] = Field(None, description="Present if the feature has `keys`.")
    pooling: Pooling
    output_shape: list[Size] = Field(description="Shape of its output, before outputs are joined.")
    bytes_read: Size = Field(description="Number of bytes that it reads from the table.")
    shards: list[ExplainedShards] | SkipJsonSchema[None] = Field(
        None, description="For a table in row ranges: the ranges that are needed."
    )


class LookupExplanation(OpenModel):
    """What would run, on which route, and why. Nothing has run."""

    operator: str
    features: list[ExplainedFeature]
    output_bytes: Size | None = Field(description="Bytes of all outputs' items; null for strings.")
    size: ExplainedSize
    routes: list[ExplainedRoute] = Field(description="In order of preference: the first open one is used.")
    choice: ExplainedChoice
    not_checked: str = Field(description="What running the request would check in addition.")


class LookupAnswer(OpenModel):
    """The answer of a lookup: `output` (or `outputs` if `concat` is false), and the tensors that it read."""

    output: OutputTensor | SkipJsonSchema[None] = Field(None, description="The features' outputs, joined on axis 1.")
    outputs: list[OutputTensor] | SkipJsonSchema[None] = Field(
        None, description="The output of each feature, if they are not joined."
    )
    features: list[LookedUpTensor] = Field(description="What each feature read.")
    replaced: Size | SkipJsonSchema[None] = Field(
        None, description="Number of indices that were out of bounds, unless that is an error."
    )
    missing: Size | SkipJsonSchema[None] = Field(
        None, description="Number of missing keys over all features, if a feature has keys."
    )
    explanation: LookupExplanation | SkipJsonSchema[None] = Field(
        None, description="Replaces the outputs' values if the request has `explain=true`."
    )


class RuleBody(OpenModel):
    """The rule of the operator that the request breaks."""

    dialect: str
    clause: str | None = Field(description="Its number in the specification; null if the rule has none.")
    text: str


class PlaceBody(OpenModel):
    """One place in the request that is wrong."""

    pointer: str = Field(description="JSON pointer into the request; /query/NAME for the query.")
    position: list[Size] | SkipJsonSchema[None] = Field(None, description="Coordinates within the tensor.")
    value: Any = Field(None, description="The wrong value; integers beyond 64 bits as text.")
    axis: Size | SkipJsonSchema[None] = Field(None, description="Axis of data.")
    size: Size | SkipJsonSchema[None] = Field(None, description="Size of that axis.")
    allowed: list[Annotated[int, Field(json_schema_extra=INT64)]] | None = Field(
        None, description="Lowest and highest value allowed; null on an axis of size 0."
    )
    offset: Size | SkipJsonSchema[None] = Field(
        None, description="The byte where a JSON text of more than 1 MiB is wrong."
    )


class UnavailableRange(OpenModel):
    """Rows of a table for which no replica answers."""

    tensor: str = Field(description="The table's name and the number of its version.")
    start: Size = Field(description="The first row.")
    stop: Size = Field(description="The row after the last one.")


class Problem(OpenModel):
    """An error (RFC 9457). `code` is from the closed catalogue at /errors."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    rule: RuleBody | SkipJsonSchema[None] = None
    errors: list[PlaceBody] | SkipJsonSchema[None] = Field(None, description="The first ten places.")
    total: Size | SkipJsonSchema[None] = Field(None, description="Total number of places.")
    limit: str | SkipJsonSchema[None] = Field(None, description="Name of the limit that was exceeded.")
    maximum: Size | SkipJsonSchema[None] = Field(None, description="Value of that limit.")
    ranges: list[UnavailableRange] | SkipJsonSchema[None] = Field(
        None, description="For shard_unavailable: the rows for which no replica is responding."
    )
    hint: str = Field(description="One sentence on how to correct the request.")
    request_id: str


class Ready(OpenModel):
    """The service is ready."""

    status: Literal["ready"]


class Live(OpenModel):
    """The process is alive."""

    status: Literal["live"]

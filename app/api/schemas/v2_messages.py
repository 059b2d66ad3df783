"""The bodies of the inference protocol, for OpenAPI and generated clients.

`app.formats.oip` reads and writes infer bodies; these models document them. Unknown members are ignored, as the
protocol requires.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.schemas.answers import OpenModel, Problem
from app.requests.schemas.infer_request import Datatype
from app.requests.schemas.member_types import Size

Parameters = Annotated[
    dict[str, Any] | SkipJsonSchema[None],
    Field(None, description="Further settings by name: numbers, strings, true and false."),
]


class InferOutput(OpenModel):
    """An output tensor; its items are in `data`, or the `parameters.binary_data_size` bytes after the JSON."""

    name: str
    datatype: Datatype
    shape: list[Size]
    parameters: Parameters
    data: list[Any] | SkipJsonSchema[None] = Field(
        None, description='The items, flat; non-finite numbers are the strings "NaN", "Infinity" and "-Infinity".'
    )


class InferAnswer(OpenModel):
    """The answer to an infer request. `parameters` has the applied `dialect` and the `device`."""

    id: str | SkipJsonSchema[None] = None
    model_name: str
    model_version: str
    parameters: Parameters
    outputs: list[InferOutput]


class ServerLive(OpenModel):
    """The process is alive."""

    live: bool


class ServerReady(OpenModel):
    """Requests may be sent."""

    ready: bool


class ServerMetadata(OpenModel):
    """The server and its extensions of the protocol."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(OpenModel):
    """An input or output of a model. The protocol has no word for "any datatype" or "any rank": `FP32` stands for every
    datatype if `parameters` lists them as `datatypes`, the shape `[-1]` for every shape, and `[-1, -1]` for `indices`
    whose last dimension is an index tuple: `[n, 1]` is n rows, and `[n]` one tuple.
    """

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: Parameters


class ModelMetadata(OpenModel):
    """The inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(OpenModel):
    """The model may be called."""

    name: str
    ready: bool


class IndexEntry(OpenModel):
    """A model of the repository."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Duration(OpenModel):
    """A count of operations and their total time in nanoseconds."""

    count: Size
    ns: Size


class InferStatistics(OpenModel):
    """Times of a model's requests: `queue` is the time between reading and the kernel, `compute_infer` the kernel."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(OpenModel):
    """Times of the requests of one batch size, which is always 1 here."""

    batch_size: Size
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatisticsBody(OpenModel):
    """The statistics of a model since the process started."""

    name: str
    version: str
    last_inference: Size = Field(description="Milliseconds since 1970; 0 for never.")
    inference_count: Size
    execution_count: Size
    inference_stats: InferStatistics
    response_stats: dict[str, Any]
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any]


class StatisticsBody(OpenModel):
    """The statistics of one model or of all."""

    model_stats: list[ModelStatisticsBody]


class ProtocolError(Problem):
    """An error under /v2: the members of a Problem, and the protocol's `error`."""

    error: str = Field(description="The same as `detail`.")

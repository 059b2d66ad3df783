"""What lookups answer, as OpenAPI and generated clients see it."""

from __future__ import annotations

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.schemas.gather_answer import (
    ExplainedChoice,
    ExplainedRoute,
    ExplainedShards,
    ExplainedSize,
    ExplainedTensor,
    OpenModel,
    OutputTensor,
)
from app.requests.schemas.members import Size
from app.tensors.lookup_call import Pooling


class LookedUpTensor(OpenModel):
    """The resident tensor that a feature read."""

    tensor: str = Field(description="Its name, as the request has it.")
    data_etag: str = Field(description="ETag of the content that was read.")
    version: Size = Field(description="Number of the version that was read.")


class ExplainedFeature(OpenModel):
    """A feature of an explained lookup."""

    tensor: str = Field(description="Name of its resident tensor.")
    table: ExplainedTensor
    indices: ExplainedTensor
    pooling: Pooling
    output_shape: list[Size] = Field(description="Shape of its output, before outputs are joined.")
    bytes_read: Size = Field(description="Bytes of the rows that it reads.")
    shards: list[ExplainedShards] | SkipJsonSchema[None] = Field(
        None, description="Of a table in row ranges, those that are needed."
    )


class LookupExplanation(OpenModel):
    """What would run, where and why. Nothing has run."""

    operator: str
    features: list[ExplainedFeature]
    output_bytes: Size | None = Field(description="Bytes of all outputs' items; null for strings.")
    size: ExplainedSize
    routes: list[ExplainedRoute] = Field(description="In the order of preference: the first open one is taken.")
    choice: ExplainedChoice
    not_checked: str = Field(description="What a lookup would still check.")


class LookupAnswer(OpenModel):
    """What a lookup answers: `output`, or `outputs` where the request says `concat` false; and what was read."""

    output: OutputTensor | SkipJsonSchema[None] = Field(None, description="The features' outputs, joined on axis 1.")
    outputs: list[OutputTensor] | SkipJsonSchema[None] = Field(
        None, description="The output of each feature, where they are not joined."
    )
    features: list[LookedUpTensor] = Field(description="What each feature read.")
    replaced: Size | SkipJsonSchema[None] = Field(
        None, description="How many indices were out of bounds, unless that is an error."
    )
    explanation: LookupExplanation | SkipJsonSchema[None] = Field(
        None, description="Instead of the outputs' values, where the request says `explain=true`."
    )

"""The answers of the routes of gradients, as OpenAPI and generated clients see them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.schemas.gather_answer import (
    ExplainedChoice,
    ExplainedPlan,
    ExplainedRoute,
    ExplainedSize,
    ExplainedTensor,
    OpenModel,
    OutputTensor,
)
from app.requests.schemas.members import Size
from app.tensors.operator_signature import BackwardName


class ExplainedBackward(OpenModel):
    """What would run, where and why. Nothing has run."""

    operator: BackwardName
    data: ExplainedTensor = Field(description="The gather's data, of which there is a shape alone.")
    indices: ExplainedTensor
    grad_output: ExplainedTensor
    output_bytes: Size = Field(description="Bytes of the answer's items, for a sparse gradient at most.")
    plan: ExplainedPlan
    size: ExplainedSize
    routes: list[ExplainedRoute] = Field(description="In the order of preference: the first open one is taken.")
    choice: ExplainedChoice
    not_checked: str = Field(description="What would still be checked.")


class BackwardAnswer(OpenModel):
    """The gradient: `grad_data`, or, where the request says `sparse`, `grad_indices` and `grad_values`."""

    grad_data: OutputTensor | SkipJsonSchema[None] = Field(None, description="Of the shape of the gather's data.")
    grad_indices: OutputTensor | SkipJsonSchema[None] = Field(
        None, description="int64; the index tuples that were named, each once, counted from the front, ascending."
    )
    grad_values: OutputTensor | SkipJsonSchema[None] = Field(None, description="The slice of each of these tuples.")
    dialect: str = Field(description="The dialect that was followed.")
    device: Literal["cpu"] = Field(description="Where it ran.")
    explanation: ExplainedBackward | SkipJsonSchema[None] = Field(
        None, description="Instead of the values, where the request says `explain=true`."
    )

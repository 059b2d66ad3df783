"""The JSON of a scatter into a resident tensor."""

from __future__ import annotations

from pydantic import Field

from app.tensors.scatter_call import Reduction
from app.wire.request_schemas.gather_request import Tensor
from app.wire.request_schemas.members import RequestModel


class ScatterRequest(RequestModel):
    """A ScatterND into a resident tensor, as ONNX 18 has it."""

    indices: Tensor = Field(description="int64; each tuple in the last dimension names an element or slice.")
    updates: Tensor = Field(description="Of the tensor's type and of shape indices.shape[:-1] + tensor.shape[k:].")
    reduction: Reduction = Field(
        "none",
        description="How an update combines with what is there. Updates count in row-major order: with none the last "
        "one of a place wins, others are applied one after the other. bool, string and complex take none only.",
    )

"""The bodies of the routes of resident tensors, as OpenAPI and generated clients see them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from app.api.schemas.gather_request import DTypeName, OpenModel, Size, Tensor


class ResidentTensor(OpenModel):
    """What is known of a resident tensor."""

    name: str
    dtype: DTypeName
    shape: list[Size]
    bytes: Size = Field(description="Bytes of its items; strings with a length of 4 bytes each.")
    etag: str = Field(
        description="Names this content and no other, of this tensor or any, at any time; in quotes as in the header."
    )
    sha256: str = Field(
        description="SHA-256 of dtype, shape and items as uploaded, in hex: equal for every format of the upload, and "
        "not changed by scatters."
    )
    created: str = Field(
        description="When the name came into being (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    modified: str = Field(description="When the content last changed.", json_schema_extra={"format": "date-time"})
    prefault: bool = Field(description="Whether the content is read into memory ahead of requests.")
    lock: bool = Field(description="Whether the content is to be kept in memory.")
    damaged: bool | SkipJsonSchema[None] = Field(None, description="True, in lists, where the content is damaged.")


class TensorList(OpenModel):
    """Resident tensors in the order of their names."""

    tensors: list[ResidentTensor]
    next: str | None = Field(description="What to give as `after` for the tensors that follow; null at the end.")


class ScatterRequest(BaseModel):
    """A ScatterND into a resident tensor, as ONNX 18 has it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=OpenModel.model_config["json_schema_extra"])

    indices: Tensor = Field(description="int64; each tuple in the last dimension names an element or slice.")
    updates: Tensor = Field(description="Of the tensor's type and of shape indices.shape[:-1] + tensor.shape[k:].")
    reduction: Literal["none", "add", "mul", "min", "max"] = Field(
        "none",
        description="How an update combines with what is there. Updates count in row-major order: with none the last "
        "one of a place wins, others are applied one after the other. bool, string and complex take none only.",
    )


class ScatterAnswer(OpenModel):
    """The tensor after the scatter."""

    name: str
    etag: str

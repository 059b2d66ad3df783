"""The answers of the routes of resident tensors, as OpenAPI and generated clients see them."""

from __future__ import annotations

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.schemas.gather_answer import OpenModel
from app.requests.schemas.members import DTypeName, Size


class ResidentTensor(OpenModel):
    """What is known of a version of a resident tensor; in lists of the current one."""

    name: str
    version: Size = Field(description="Its number: each upload of the name makes the next one.")
    versions: list[Size] = Field(description="The numbers of all versions of the tensor that are kept.")
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


class ScatterAnswer(OpenModel):
    """The tensor after the scatter."""

    name: str = Field(description="Its name, as the path has it.")
    etag: str

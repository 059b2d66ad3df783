"""The body of `POST /tensors/{name}/import`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.errors import invalid_field
from app.requests.schemas.invalid_fields import validated
from app.requests.schemas.member_types import ABSENT, Detail, JsonString, RequestModel

_URL: Final = Detail("url must be a text, such as 'https://host/folder/table.npy'")
_NOTE: Final = Detail("note must be a text, what is said of the version wherever it is described")
_TENSOR: Final = Detail("tensor must be a text, the name of one of the tensors of a safetensors file")


class ImportRequest(RequestModel):
    """What is to be imported."""

    url: Annotated[JsonString, _URL] = Field(
        description="Of an npy or safetensors file: https, http, s3 or file, below a prefix of GATHERND_IMPORT_FROM."
    )
    tensor: Annotated[JsonString, _TENSOR] = Field(
        ABSENT, description="Which tensor of a safetensors file that has several."
    )
    note: Annotated[JsonString, _NOTE] = Field(
        ABSENT, description="What is said of the version that it makes, as `note` in the query of an upload."
    )


def import_request(document: Any) -> ImportRequest:
    """What a JSON document asks for, as it was written. Raises invalid_field."""
    found = validated(ImportRequest, document)
    if any("\ud800" <= sign <= "\udfff" for sign in found.tensor or ""):
        raise invalid_field("/tensor", "tensor has a lone surrogate, which no name in a file can have")
    return found

"""The body of `POST /tensors/{name}/import`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from app.errors import invalid_field
from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.members import ABSENT, Detail, JsonString, RequestModel

_URL: Final = Detail("url must be a text, such as 'https://host/folder/table.npy'")
_TENSOR: Final = Detail("tensor must be a text, the name of one of the tensors of a safetensors file")


class ImportRequest(RequestModel):
    """What is to be imported."""

    url: Annotated[JsonString, _URL] = Field(
        description="Of an npy or safetensors file: https, http, s3 or file, below a prefix of GATHERND_IMPORT_FROM."
    )
    tensor: Annotated[JsonString, _TENSOR] = Field(
        ABSENT, description="Which tensor of a safetensors file that has several."
    )


def import_source(document: Any) -> tuple[str, str | None]:
    """URL and tensor of a JSON document, as they were written. Raises invalid_field."""
    try:
        found = ImportRequest.model_validate(document)
    except ValidationError as refusal:
        raise InvalidFields(refusal, ImportRequest, document).first() from None
    if any("\ud800" <= sign <= "\udfff" for sign in found.tensor or ""):
        raise invalid_field("/tensor", "tensor has a lone surrogate, which no name in a file can have")
    return found.url, found.tensor

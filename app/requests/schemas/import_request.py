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
_KEYS: Final = Detail("keys must be a text, the name of the tensor that holds the keys of the rows")


class ImportRequest(RequestModel):
    """The source of an import."""

    url: Annotated[JsonString, _URL] = Field(
        description="URL (https, http, s3, file) of an npy or safetensors file, below a prefix in GATHERND_IMPORT_FROM."
    )
    tensor: Annotated[JsonString, _TENSOR] = Field(
        ABSENT, description="Name of the tensor to import, if a safetensors file has several."
    )
    keys: Annotated[JsonString, _KEYS] = Field(
        ABSENT,
        description="Name of the tensor with the keys of the rows, in a safetensors file. For string keys, NAME stands "
        "for NAME.offsets and NAME.bytes. The keys must come before the rows in the file.",
    )
    note: Annotated[JsonString, _NOTE] = Field(
        ABSENT, description="A note about the new version, like `note` in the query of an upload."
    )


def import_request(document: Any) -> ImportRequest:
    """Validate the body of an import. Raises invalid_field."""
    found = validated(ImportRequest, document)
    for member, text in (("tensor", found.tensor), ("keys", found.keys)):
        if any("\ud800" <= sign <= "\udfff" for sign in text or ""):
            raise invalid_field(f"/{member}", f"{member} has a lone surrogate, which no name in a file can have")
    return found

"""The body of `PUT /aliases/{alias}`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.members import Detail, JsonString, RequestModel

_TARGET: Final = Detail("tensor must be a text, the version that the alias is to name, as in 'items@7'")


class AliasRequest(RequestModel):
    """What an alias is to name."""

    tensor: Annotated[JsonString, _TARGET] = Field(
        description="The version of a tensor, `NAME@7`; never an alias, and never a name without a number."
    )


def alias_target(document: Any) -> str:
    """What the alias of a JSON document is to name, as it was written. Raises invalid_field."""
    try:
        return AliasRequest.model_validate(document).tensor
    except ValidationError as refusal:
        raise InvalidFields(refusal, AliasRequest, document).first() from None

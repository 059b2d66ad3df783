"""The body of `PUT /tensors/{name}/replicas`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.requests.schemas.invalid_fields import validated
from app.requests.schemas.member_types import Detail, JsonInteger, RequestModel

MOST_REPLICAS: Final = 100
"""On how many shards each range of a table may be."""
_NUMBER: Final = Detail(f"replicas must be an integer from 1 to {MOST_REPLICAS}")


class ReplicasRequest(RequestModel):
    """On how many shards each range of a table is to be."""

    replicas: Annotated[JsonInteger, Field(ge=1, le=MOST_REPLICAS), _NUMBER] = Field(
        description="On how many shards each range is to be, of all versions."
    )


def asked_replicas(document: Any) -> int:
    """How many replicas a JSON document asks for. Raises invalid_field."""
    return validated(ReplicasRequest, document).replicas

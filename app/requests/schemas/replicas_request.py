"""The body of `PUT /tensors/{name}/replicas`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.requests.schemas.invalid_fields import validated
from app.requests.schemas.member_types import Detail, JsonInteger, RequestModel

MOST_REPLICAS: Final = 100
"""Most shards that may hold a copy of each row range."""
_NUMBER: Final = Detail(f"replicas must be an integer from 1 to {MOST_REPLICAS}")


class ReplicasRequest(RequestModel):
    """The number of shards that hold a copy of each row range of a table."""

    replicas: Annotated[JsonInteger, Field(ge=1, le=MOST_REPLICAS), _NUMBER] = Field(
        description="Number of shards that hold a copy of each row range, for all versions."
    )


def asked_replicas(document: Any) -> int:
    """Return the number of replicas in a JSON body. Raises invalid_field."""
    return validated(ReplicasRequest, document).replicas

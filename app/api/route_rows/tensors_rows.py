"""The route of the rows of a table by their keys; `app.api.routes.tensors_rows` answers it."""

from __future__ import annotations

from typing import Final

from app.api.route_rows.operation import GATHER, Operation, Route, in_path
from app.api.schemas.answers import GatherAnswer
from app.requests.schemas.common_fields import RESIDENT
from app.security.authorizer import Access
from app.tensors.tensor_name import REFERENCE_PATTERN

_KEY: Final = {
    "name": "key",
    "in": "query",
    "required": True,
    "description": "A key of the table, as text; once for each row.",
    "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "style": "form",
    "explode": True,
}
ROW_ROUTES: Final = (
    Route("/tensors/{name}/rows", GATHER, Access.GATHER, {
        "GET": Operation(
            "tensorRows",
            "The rows of some keys of a table",
            (
                "tensor_not_found", "tensor_damaged", "no_keys", "value_not_representable", "output_too_large",
                "limit_exceeded", "deadline_exceeded", "shard_unavailable",
            ),
            (in_path("name", f"{RESIDENT}.", REFERENCE_PATTERN), _KEY),
            answer=GatherAnswer,
            description="What `POST /gather` answers to these keys with `missing` fill and `found`: rows of keys that "
            "the table lacks are zeros, false or empty strings, and `found` tells them apart.",
            tag="gather",
        ),
    }),
)  # fmt: skip

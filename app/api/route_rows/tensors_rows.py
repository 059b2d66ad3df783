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
    "description": "A key of the table, as text; repeat it for more rows.",
    "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "style": "form",
    "explode": True,
}
ROW_ROUTES: Final = (
    Route("/tensors/{name}/rows", GATHER, Access.GATHER, {
        "GET": Operation(
            "tensorRows",
            "Rows of a table by key",
            (
                "tensor_not_found", "tensor_damaged", "no_keys", "value_not_representable", "output_too_large",
                "limit_exceeded", "deadline_exceeded", "shard_unavailable",
            ),
            (in_path("name", f"{RESIDENT}.", REFERENCE_PATTERN), _KEY),
            answer=GatherAnswer,
            description="The answer of `POST /gather` to these keys with `missing` fill and `found`. A key that the "
            "table lacks gives a row of zeros, false or empty strings; `found` tells which keys the table has.",
            tag="gather",
        ),
    }),
)  # fmt: skip

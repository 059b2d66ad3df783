"""Pages and their files as OpenAPI sees them; `app.api.routes` answers for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.api.openapi_document import problem_responses
from app.api.schemas.tensor_routes_openapi import IF_CHANGED, header
from app.errors import Code


def page_operation(media_types: Iterable[str], *codes: Code) -> dict[str, Any]:
    """Arguments of `operation` for a file of one of the types, which is 304 where the caller has it already.

    It may be refused with `codes`, and for a malformed If-None-Match.
    """
    kept = {
        "ETag": header("Names the file as it is in this version of the service."),
        "Cache-Control": header("no-cache: ask again each time, with If-None-Match."),
    }
    content = {name: {"schema": {"type": "string"}} for name in media_types}
    return {
        "openapi_extra": {"parameters": [IF_CHANGED]},
        "responses": {
            200: {"description": "The file", "headers": kept, "content": content},
            304: {"description": "It has one of the ETags of If-None-Match", "headers": kept},
            **problem_responses(("invalid_field", *codes)),
        },
    }

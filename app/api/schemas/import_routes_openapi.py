"""The routes of imports as OpenAPI and generated clients see them; `app.api.routes.imports` answers them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NoReturn

from fastapi import FastAPI, Path
from pydantic import Field

from app.api.routes.tensors import MAX_KEEP, MAX_LIST
from app.api.schemas.gather_answer import OpenModel
from app.api.schemas.tensor_messages import ResidentTensor
from app.api.schemas.tensor_routes_openapi import (
    IF_MATCH,
    IF_NONE_MATCH,
    NewName,
    describe_tensor_route,
    header,
    parameter,
)
from app.requests.schemas.import_request import ImportRequest
from app.requests.schemas.members import Size

ImportId = Annotated[str, Path(description="Id of the import.")]
_REASON: Final = "answered by the data plane"


class ImportBody(OpenModel):
    """An import: what it makes, how far it is, and how it ended."""

    id: str
    name: str = Field(description="The tensor of which it makes the next version.")
    url: str = Field(description="Where it reads, without the URL's query.")
    tensor: str | None = Field(description="The tensor of a safetensors file, where the request names one.")
    state: Literal["running", "done", "failed", "cancelled"]
    bytes_done: Size = Field(description="Bytes of items that were read.")
    bytes_total: Size = Field(description="Bytes of items that there are.")
    created: str = Field(description="When it began (RFC 3339).", json_schema_extra={"format": "date-time"})
    ended: str | None = Field(
        description="When it ended; null while it runs.", json_schema_extra={"format": "date-time"}
    )
    error: dict[str, Any] | None = Field(description="Why it failed, as the body of an error; null otherwise.")
    metadata: ResidentTensor | None = Field(description="What it made, once it is done; null otherwise.")


class ImportList(OpenModel):
    """Imports in the order in which they began."""

    imports: list[ImportBody]
    next: str | None = Field(description="What to give as `after` for the imports that follow; null at the end.")


def add_import_routes(app: FastAPI) -> None:
    """Describe every route of imports."""
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIST, "default": 100}
    flag = {"type": "boolean", "default": False}

    @describe_tensor_route(
        app,
        "importTensor",
        "Import the next version of a tensor from a URL",
        [
            parameter("prefault", "query", "Read the content into memory ahead of requests.", flag),
            parameter("lock", "query", "Keep the content in memory, if the system allows it.", flag),
            parameter(
                "keep",
                "query",
                "How many of the newest versions stay, as for an upload.",
                {"type": "integer", "minimum": 1, "maximum": MAX_KEEP},
            ),
            IF_MATCH,
            IF_NONE_MATCH,
        ],
        (
            "forbidden", "name_conflict", "precondition_failed", "payload_too_large", "unsupported_media_type",
            "limit_exceeded", "overloaded", "import_failed", "insufficient_storage",
            "not_implemented",
        ),
        {202: {"description": "Begun", "headers": {"Location": header("Path of the import, to ask how far it is.")}}},
        description="The answer comes once the file has been found, its header read, and the store has room for it. "
        "The rest is read beside the requests, by ranges; the content becomes visible whole, as that of an upload.",
        response_model=ImportBody,
        status_code=202,
    )  # fmt: skip
    def import_tensor(name: NewName, body: ImportRequest) -> NoReturn:
        raise AssertionError(_REASON)

    @describe_tensor_route(
        app,
        "listImports",
        "List the imports",
        [
            parameter("limit", "query", "Most imports to list.", limit),
            parameter("after", "query", "List those that began after the one of this id."),
        ],
        (),
        {},
        description="Those that run, and the last thousand that have ended.",
        response_model=ImportList,
    )
    def list_imports() -> NoReturn:
        raise AssertionError(_REASON)

    @describe_tensor_route(
        app,
        "getImport",
        "How far an import is, or how it ended",
        [],
        ("not_found",),
        {},
        response_model=ImportBody,
    )
    def get_import(id: ImportId) -> NoReturn:  # noqa: A002  (the name in the path)
        raise AssertionError(_REASON)

    @describe_tensor_route(
        app,
        "endImport",
        "End an import, or forget one that has ended",
        [],
        ("not_found", "insufficient_storage"),
        {204: {"description": "It ends within a second, unless it was done before; or is forgotten"}},
        status_code=204,
    )
    def end_import(id: ImportId) -> None:  # noqa: A002  (the name in the path)
        raise AssertionError(_REASON)

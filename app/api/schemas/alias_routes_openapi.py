"""The routes of aliases as OpenAPI and generated clients see them; `app.api.routes.aliases` answers them."""

from __future__ import annotations

from typing import Annotated, Any, Final, NoReturn

from fastapi import FastAPI, Path
from pydantic import Field

from app.api.routes.tensors import MAX_LIST
from app.api.schemas.gather_answer import OpenModel
from app.api.schemas.tensor_routes_openapi import (
    IF_CHANGED,
    LOCATION,
    UNCHANGED,
    describe_tensor_route,
    header,
    parameter,
)
from app.requests.schemas.alias_request import AliasRequest
from app.requests.schemas.members import Size
from app.tensors.tensor_name import PATTERN

AliasName = Annotated[str, Path(description="Name of the alias, which no tensor has.", pattern=PATTERN)]
_ETAG: Final[dict[str, Any]] = {"ETag": header("Names this alias as it is until it is moved.")}
_IF_MATCH: Final = parameter("If-Match", "header", "ETags of the alias itself, of which it must have one, or *.")
_IF_NONE_MATCH: Final = parameter("If-None-Match", "header", "* where there must be no such alias, or ETags.")
_REASON: Final = "answered by the data plane"


class AliasBody(OpenModel):
    """An alias, and the version of a tensor that it names."""

    alias: str = Field(description="Its own name.")
    tensor: str = Field(description="The version that it names, `NAME@7`.")
    version: Size = Field(description="The number of that version.")
    etag: str = Field(description="Another one after each move; in quotes as in the header.")
    created: str = Field(
        description="When the alias came into being (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    modified: str = Field(description="When it was last moved.", json_schema_extra={"format": "date-time"})


class AliasList(OpenModel):
    """Aliases in the order of their names."""

    aliases: list[AliasBody]
    next: str | None = Field(description="What to give as `after` for the aliases that follow; null at the end.")


def add_alias_routes(app: FastAPI) -> None:
    """Describe every route of aliases."""
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIST, "default": 100}

    @describe_tensor_route(
        app,
        "listAliases",
        "List the aliases",
        [
            parameter("limit", "query", "Most aliases to list.", limit),
            parameter("after", "query", "List those whose names come after this one."),
        ],
        (),
        {},
        response_model=AliasList,
    )
    def list_aliases() -> NoReturn:
        raise AssertionError(_REASON)

    @describe_tensor_route(
        app,
        "getAlias",
        "What an alias names",
        [_IF_MATCH, IF_CHANGED],
        ("tensor_not_found", "precondition_failed"),
        {200: {"description": "The alias", "headers": _ETAG}, **UNCHANGED},
        response_model=AliasBody,
    )
    def get_alias(alias: AliasName) -> NoReturn:
        raise AssertionError(_REASON)

    @describe_tensor_route(
        app,
        "putAlias",
        "Make an alias, or move it to another version",
        [_IF_MATCH, _IF_NONE_MATCH],
        (
            "tensor_not_found", "name_conflict", "precondition_failed", "payload_too_large", "unsupported_media_type",
            "insufficient_storage", "not_implemented",
        ),
        {
            200: {"description": "Moved, or as it was", "headers": _ETAG},
            201: {"description": "Made", "headers": _ETAG | LOCATION, "model": AliasBody},
        },
        description="One step for all workers: once the answer comes, every request through the alias reads that "
        "version. It keeps its ETag where it names the version already. What an alias names is not removed.",
        response_model=AliasBody,
    )  # fmt: skip
    def put_alias(alias: AliasName, body: AliasRequest) -> NoReturn:
        raise AssertionError(_REASON)

    @describe_tensor_route(
        app,
        "deleteAlias",
        "Remove an alias",
        [_IF_MATCH],
        ("tensor_not_found", "name_conflict", "precondition_failed", "insufficient_storage", "not_implemented"),
        {204: {"description": "Removed; the tensor stays"}},
        status_code=204,
    )
    def delete_alias(alias: AliasName) -> None:
        raise AssertionError(_REASON)

"""The routes for aliases; `app.api.routes.aliases` handles them."""

from __future__ import annotations

from typing import Final

from app.api.route_rows.operation import TENSORS, Operation, Route, header, in_path, parameter
from app.api.route_rows.tensors import IF_CHANGED, LOCATION, UNCHANGED, limit
from app.api.schemas.tensor_messages import AliasBody, AliasList
from app.errors import Code
from app.requests.schemas.management_requests import MOST_ALIASES, AliasesRequest, AliasRequest
from app.security.authorizer import Access
from app.tensors.tensor_name import PATTERN

_ALIAS: Final = in_path("alias", "Name of the alias; no tensor may have it.", PATTERN)
_ETAG: Final = {"ETag": header("Identifies the alias in its current state; it changes when the alias is moved.")}
_IF_MATCH: Final = parameter("If-Match", "header", "ETags, one of which must match the alias, or * for any.")
_IF_NONE_MATCH: Final = parameter(
    "If-None-Match", "header", "* if the alias must not exist, or a list of ETags that it must not have."
)
_CHANGE: Final[tuple[Code, ...]] = (
    "tensor_not_found", "name_conflict", "precondition_failed", "payload_too_large", "unsupported_media_type",
    "insufficient_storage", "not_implemented",
)  # fmt: skip


ALIAS_ROUTES: Final = (
    Route("/aliases", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "listAliases",
            "List the aliases",
            (),
            (limit("aliases"), parameter("after", "query", "List the names that sort after this one.")),
            answer=AliasList,
        ),
        "PUT": Operation(
            "putAliases",
            "Create or move several aliases in one step",
            _CHANGE,
            (),
            body=AliasesRequest,
            answer=AliasList,
            answers={200: {"description": "All aliases point to their requested versions"}},
            description=f"Moves all or none of up to {MOST_ALIASES} aliases, in one step for all workers: a request "
            "that names several tables reads all of them before the step, or all of them after it. An alias may have "
            "a condition. If a condition does not hold, no alias is moved, and the error says which alias it was.",
        ),
    }),
    Route("/aliases/{alias}", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "getAlias",
            "Get the version that an alias points to",
            ("tensor_not_found", "precondition_failed"),
            (_ALIAS, _IF_MATCH, IF_CHANGED),
            answer=AliasBody,
            answers={200: {"description": "The alias", "headers": _ETAG}, **UNCHANGED},
        ),
        "PUT": Operation(
            "putAlias",
            "Create an alias, or move it to another version",
            _CHANGE,
            (_ALIAS, _IF_MATCH, _IF_NONE_MATCH),
            body=AliasRequest,
            answer=AliasBody,
            answers={
                200: {"description": "Moved, or already at that version", "headers": _ETAG},
                201: {"description": "Created", "headers": _ETAG | LOCATION, "model": AliasBody},
            },
            description="The change is made in one step for all workers: once the response is sent, every request "
            "through the alias reads that version. If the alias already points to the version, it keeps its ETag. A "
            "version with an alias cannot be removed.",
        ),
        "DELETE": Operation(
            "deleteAlias",
            "Remove an alias",
            (
                "tensor_not_found", "name_conflict", "precondition_failed", "insufficient_storage",
                "not_implemented",
            ),
            (_ALIAS, _IF_MATCH),
            answers={204: {"description": "Removed; the tensor stays"}},
            status=204,
        ),
    }),
)  # fmt: skip

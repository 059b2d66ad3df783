"""The routes of aliases; `app.api.routes.aliases` answers them."""

from __future__ import annotations

from typing import Final

from app.api.route_rows.operation import TENSORS, Operation, Route, header, in_path, parameter
from app.api.route_rows.tensors import IF_CHANGED, LOCATION, UNCHANGED, limit
from app.api.schemas.tensor_messages import AliasBody, AliasList
from app.errors import Code
from app.requests.schemas.alias_request import MOST_ALIASES, AliasesRequest, AliasRequest
from app.security.authorizer import Access
from app.tensors.tensor_name import PATTERN

_ALIAS: Final = in_path("alias", "Name of the alias, which no tensor has.", PATTERN)
_ETAG: Final = {"ETag": header("Names this alias as it is until it is moved.")}
_IF_MATCH: Final = parameter("If-Match", "header", "ETags of the alias itself, of which it must have one, or *.")
_IF_NONE_MATCH: Final = parameter("If-None-Match", "header", "* where there must be no such alias, or ETags.")
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
            (limit("aliases"), parameter("after", "query", "List those whose names come after this one.")),
            answer=AliasList,
        ),
        "PUT": Operation(
            "putAliases",
            "Make or move several aliases in one step",
            _CHANGE,
            (),
            body=AliasesRequest,
            answer=AliasList,
            answers={200: {"description": "All made or moved, or as they were"}},
            description=f"All or none of up to {MOST_ALIASES} aliases, in one step for all workers: a request that "
            "names several tables reads all of them as they were before it, or all as they are after it. An alias may "
            "have a condition; where one does not hold none is moved, and the error names the alias.",
        ),
    }),
    Route("/aliases/{alias}", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "getAlias",
            "What an alias names",
            ("tensor_not_found", "precondition_failed"),
            (_ALIAS, _IF_MATCH, IF_CHANGED),
            answer=AliasBody,
            answers={200: {"description": "The alias", "headers": _ETAG}, **UNCHANGED},
        ),
        "PUT": Operation(
            "putAlias",
            "Make an alias, or move it to another version",
            _CHANGE,
            (_ALIAS, _IF_MATCH, _IF_NONE_MATCH),
            body=AliasRequest,
            answer=AliasBody,
            answers={
                200: {"description": "Moved, or as it was", "headers": _ETAG},
                201: {"description": "Made", "headers": _ETAG | LOCATION, "model": AliasBody},
            },
            description="One step for all workers: once the answer comes, every request through the alias reads that "
            "version. It keeps its ETag where it names the version already. What an alias names is not removed.",
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

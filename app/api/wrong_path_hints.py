"""Hints for requests with an unknown path or with a method that the path does not accept."""

from __future__ import annotations

import re
from typing import Final

from app.api.route_rows.operation import Route
from app.api.route_table import TABLE, path_of
from app.operators.registry import LOOKUPS, OPERATORS

_LIVE: Final = path_of("livez")
_READY: Final = path_of("readyz")
_OPERATORS: Final = "|".join((*OPERATORS, LOOKUPS.name))
_FIRST: Final = r"\1"
"""In a hint, stands for the text that matched the first group of the hint's pattern."""
_USUAL: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), hint)
    for pattern, hint in (
        (
            "(api/|_)?(health(z|check)?|status|ping|ready|alive|live|up)/?",
            f"Use the path '{_READY}' to see whether it is ready, or '{_LIVE}' whether the process runs.",
        ),
        (
            "v2/(health|ready|live)/?",
            f"Use the path '{path_of('serverReady')}' to see whether it is ready, or '{path_of('serverLive')}'.",
        ),
        (
            "(v[12]/)?(models|repository|index|repository/models)/?",
            f"Send POST to '{path_of('repositoryIndex')}', which lists the models.",
        ),
        (
            "(swagger|redoc|api|api-docs|openapi)([/.].*)?",
            f"Use the path '{path_of('openapi')}' for the OpenAPI file, or '{path_of('docs')}' for a page of it.",
        ),
        (
            "(v[12]/)?(version|v1|info|metadata)/?",
            f"Use the path '{path_of('serverMetadata')}', which has the version.",
        ),
        (f"({_OPERATORS})/explain/?", f"Use the path '/{_FIRST}?explain=true'."),
        ("explain/?", f"Use the path '{path_of('gathernd')}?explain=true', or that of another operator."),
        (
            "tensors/([^/]+)/(data|rows|download|values)/?",
            f"Use the path '{path_of('tensorContent', name=_FIRST)}', with rows=0:2 in the query for rows alone.",
        ),
    )
)
"""Hints for paths that other services use, without the first slash. The first match applies."""
_LISTS: Final = {
    "listTensors": f"PUT at '{path_of('putTensor', name='NAME')}' to upload one",
    "listAliases": f"PUT at '{path_of('putAlias', alias='NAME')}' to make one",
    "listImports": f"POST at '{path_of('importTensor', name='NAME')}' to start one",
}
"""How to create the items of a list, by the operation that lists them."""


def hint_for_path(path: str) -> str:
    """Return a hint for an unknown path."""
    for pattern, hint in _USUAL:
        match = pattern.fullmatch(path[1:])
        if match is not None:
            return match.expand(hint)
    near = TABLE.find_near(path)
    return f"Use one of the paths that GET {path_of('docs')} lists." if near is None else f"Use the path '{near}'."


def hint_for_method(route: Route, method: str) -> str:
    """Return a hint for `method`, which `route` does not accept."""
    operations = {method: operation.name for method, operation in route.operations.items()}
    if method in ("POST", "PUT", "PATCH"):
        if operations.get("PUT") == "putTensor":
            return "Use the method PUT to upload a tensor, as in 'curl -T FILE.npy URL' with the URL of this request."
        if operations.get("GET") in _LISTS:
            return f"Use the method GET for the list, or {_LISTS[operations['GET']]}."
        for other in ("PUT", "POST"):
            if other in operations:
                return f"Use the method {other}, with curl by -X {other}."
    return f"Use the method {' or '.join(operations)}."

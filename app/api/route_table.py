"""The table of routes: paths, the operation for each method, and the access that callers need.

The rows are in `app.api.route_rows`. This is the only source of paths in `app/`: the ASGI application, the rules of API
keys, OpenAPI, the labels of metrics, logs and traces, and the server's health checks all use it.

Paths are decoded and compared segment by segment: an encoded slash is part of its segment (see
`asgi_request.decoded_path`). Trailing slashes and letter case are significant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from app.api.route_rows.aliases import ALIAS_ROUTES
from app.api.route_rows.health_and_pages import HEALTH_AND_PAGES
from app.api.route_rows.imports import IMPORT_ROUTES
from app.api.route_rows.inference_protocol import INFERENCE_PROTOCOL
from app.api.route_rows.operation import CONTROL, Route
from app.api.route_rows.operators import OPERATOR_ROUTES
from app.api.route_rows.shard_segments import SHARD_ROUTES
from app.api.route_rows.tensors import ROW_ROUTES, TENSOR_ROUTES
from app.near_name import near_name
from app.security.authorizer import Access

ROUTES: Final = (
    *OPERATOR_ROUTES,
    *HEALTH_AND_PAGES,
    *INFERENCE_PROTOCOL,
    *TENSOR_ROUTES,
    *ROW_ROUTES,
    *IMPORT_ROUTES,
    *ALIAS_ROUTES,
)

_OTHER: Final = Route("other", CONTROL, Access.GATHER, {})
"""The route of every unknown path; its template is the label that all unknown paths share."""
_OTHER_BELOW: Final = {
    "/tensors/": _OTHER._replace(access=Access.TENSORS),
    "/aliases/": _OTHER._replace(access=Access.TENSORS),
    "/imports/": _OTHER._replace(access=Access.TENSORS),
    "/assets/": _OTHER._replace(access=Access.PUBLIC),
    "/docs/": _OTHER._replace(access=Access.PUBLIC),
    "/errors/": _OTHER._replace(access=Access.PUBLIC),
    "/v2/health/": _OTHER._replace(access=Access.PUBLIC),
}
"""The routes of unknown paths by prefix; they require the same access as the known routes with that prefix."""


class RouteTable:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_path: dict[str, tuple[Route, tuple[str, ...]]] = {}
        self._by_size: dict[int, list[tuple[Route, list[str]]]] = {}
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Add `route` after the existing ones. Routes without braces are found before routes with braces."""
        segments = route.template.split("/")
        if "{" in route.template:
            self._by_size.setdefault(len(segments), []).append((route, segments))
        else:
            self._by_path[route.template] = route, ()

    def find(self, path: str) -> tuple[Route, tuple[str, ...]]:
        """Return the route of a decoded path, and the segments that match its braces.

        For an unknown path, returns a route that has no operations and has the template "other".
        """
        found = self._by_path.get(path)
        if found is not None:
            return found
        given = path.split("/")
        for route, segments in self._by_size.get(len(given), ()):
            parameters = _match_parameters(route, segments, given)
            if parameters is not None:
                return route, parameters
        return next((route for start, route in _OTHER_BELOW.items() if path.startswith(start)), _OTHER), ()

    def find_near(self, path: str) -> str | None:
        """Return the known path that an unknown `path` probably means, or None. Fills the braces from `path`."""
        given = path.strip("/").split("/")
        filled = (_fill_template(segments, given) for _, segments in self._by_size.get(len(given) + 1, ()))
        return near_name(path, [*self._by_path, *filter(None, filled)])


def _fill_template(segments: list[str], given: list[str]) -> str | None:
    """Fill a template's braces with the segments of `given`. Returns None if any other segment differs."""
    found = [""]
    for segment, sent in zip(segments[1:], given, strict=True):
        if segment[:1] != "{" and near_name(sent, [segment]) is None:
            return None
        found.append(sent if segment[:1] == "{" else segment)
    return "/".join(found)


def _match_parameters(route: Route, segments: list[str], given: list[str]) -> tuple[str, ...] | None:
    """Return the segments of `given` that match the braces, or None if `given` is not a path of `route`."""
    found = []
    for segment, sent in zip(segments, given, strict=True):
        if segment[:1] == "{":
            if not sent and route.plane is CONTROL:
                return None
            found.append(sent)
        elif segment != sent:
            return None
    return tuple(found)


TABLE: Final = RouteTable(ROUTES)
SHARD_TABLE: Final = RouteTable((*ROUTES, *SHARD_ROUTES))
"""The routes of a service that is started with `--shard`."""
OPERATIONS: Final[Mapping[str, tuple[str, Route]]] = {
    operation.name: (method, route) for route in ROUTES for method, operation in route.operations.items()
}
"""Method and route of each operation."""
HEALTH: Final = frozenset(route.template for route in ROUTES if route.health is not None)
READINESS: Final = frozenset(route.template for route in ROUTES if route.health == "ready")


_TEMPLATES: Final = {
    operation.name: route.template for route in (*ROUTES, *SHARD_ROUTES) for operation in route.operations.values()
}


def path_of(operation: str, **segments: str) -> str:
    """Return the path of an operation with its braces filled in. The values of `segments` must not need encoding."""
    return _TEMPLATES[operation].format(**segments)


def template(path: str, routes: RouteTable = TABLE) -> str:
    """Return the template of a path; "other" for an unknown path."""
    return routes.find(path)[0].template


def is_protocol(path: str) -> bool:
    """Return True if a path, known or not, is below the inference protocol's root, where errors have a different
    format.
    """
    return path.startswith("/v2") and path[3:4] in ("", "/")

"""The table of routes: which paths there are, what each method of a path does, and what a caller needs for it.

Whatever has to know a path reads it here: the data plane, which looks up a request's handler, the rules of API keys,
the registration at FastAPI and so OpenAPI, the labels of metrics, logs and traces, and what the server does for health
checks. No other module of `app/` has a path in it.

Paths are compared decoded, segment by segment: an encoded slash separates nothing (see `asgi_request.decoded_path`).
A slash at the end and the case of letters count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple

from app.api.route_rows.aliases import ALIAS_ROWS
from app.api.route_rows.imports import IMPORT_ROWS
from app.api.route_rows.operation import Operation, Rows
from app.api.route_rows.operators import OPERATOR_ROWS
from app.api.route_rows.tensors import TENSOR_ROWS
from app.near_name import near_name
from app.security.authorizer import Access


class Plane(Enum):
    """Who answers: a handler of the data plane, or FastAPI, which is the control plane."""

    GATHER = "data plane; needs the kernels, and is found again by the bytes of its header"
    TENSORS = "data plane; uploads and downloads of resident tensors"
    CONTROL = "control plane"


class Route(NamedTuple):
    """A path. `operations` has the operation of each method, by the name that it has in OpenAPI (`operationId`).

    A segment of `template` in braces stands for any one segment that is not empty. On the data plane it may be: a
    handler says more of a wrong name than "not found" does.

    `health` marks the paths that health checks and scrapers ask for; an error of those with "ready" is a state of the
    service rather than a failure.
    """

    template: str
    plane: Plane
    access: Access
    operations: Mapping[str, str]
    health: Literal["alive", "ready"] | None = None

    def operation(self, method: str) -> str | None:
        """The operation of `method`, None where there is none; HEAD is GET without the body."""
        return self.operations.get("GET" if method == "HEAD" else method)

    def allow(self) -> bytes:
        """The methods that the path takes, as the field Allow lists them; each takes OPTIONS."""
        head = ("HEAD",) if "GET" in self.operations else ()
        return ", ".join((*self.operations, *head, "OPTIONS")).encode()


GATHER, TENSORS, CONTROL = Plane.GATHER, Plane.TENSORS, Plane.CONTROL
_MODEL: Final = "/v2/models/{name}"


def _routes(rows: Rows, plane: Plane, access: Access) -> Iterator[Route]:
    for path, operations in rows.items():
        yield Route(path, plane, access, {method: row.name for method, row in operations.items()})


ROUTES: Final = (
    *_routes(OPERATOR_ROWS, GATHER, Access.GATHER),
    # Health, metrics and pages
    Route("/livez", CONTROL, Access.PUBLIC, {"GET": "livez"}, health="alive"),
    Route("/readyz", CONTROL, Access.PUBLIC, {"GET": "readyz"}, health="ready"),
    Route("/metrics", CONTROL, Access.ANY_KEY, {"GET": "metrics"}, health="alive"),
    # Public too: the page at /docs shows nothing without it. The page at / asks its reader for a key.
    Route("/openapi.json", CONTROL, Access.PUBLIC, {"GET": "openapi"}),
    Route("/", CONTROL, Access.PUBLIC, {"GET": "frontPage"}),
    Route("/assets/{asset}", CONTROL, Access.PUBLIC, {"GET": "pageAsset"}),
    Route("/favicon.ico", CONTROL, Access.PUBLIC, {"GET": "favicon"}),
    Route("/docs", CONTROL, Access.PUBLIC, {"GET": "docs"}),
    Route("/docs/{asset}", CONTROL, Access.PUBLIC, {"GET": "docsAsset"}),
    Route("/errors", CONTROL, Access.PUBLIC, {"GET": "errors"}),
    Route("/errors/{code}", CONTROL, Access.PUBLIC, {"GET": "errorPage"}),
    # The inference protocol
    Route("/v2", CONTROL, Access.GATHER, {"GET": "serverMetadata"}),
    Route("/v2/health/live", CONTROL, Access.PUBLIC, {"GET": "serverLive"}, health="alive"),
    Route("/v2/health/ready", CONTROL, Access.PUBLIC, {"GET": "serverReady"}, health="ready"),
    Route("/v2/models/stats", CONTROL, Access.GATHER, {"GET": "statistics"}),
    *(
        Route(f"{path}{below}", plane, Access.GATHER, {method: f"model{version}{operation}"})
        for path, version in ((_MODEL, ""), (f"{_MODEL}/versions/{{version}}", "Version"))
        for below, plane, method, operation in (
            ("", CONTROL, "GET", "Metadata"),
            ("/ready", CONTROL, "GET", "Ready"),
            ("/config", CONTROL, "GET", "Config"),
            ("/stats", CONTROL, "GET", "Statistics"),
            ("/infer", GATHER, "POST", "Infer"),
        )
    ),
    Route("/v2/repository/index", CONTROL, Access.GATHER, {"POST": "repositoryIndex"}),
    Route("/v2/repository/models/{name}/load", CONTROL, Access.GATHER, {"POST": "repositoryLoad"}),
    Route("/v2/repository/models/{name}/unload", CONTROL, Access.GATHER, {"POST": "repositoryUnload"}),
    Route("/v2/logging", CONTROL, Access.GATHER, {"GET": "getLogSettings", "POST": "updateLogSettings"}),
    Route("/v2/trace/setting", CONTROL, Access.GATHER, {"GET": "getTraceSettings", "POST": "updateTraceSettings"}),
    Route(
        f"{_MODEL}/trace/setting",
        CONTROL,
        Access.GATHER,
        {"GET": "getModelTraceSettings", "POST": "updateModelTraceSettings"},
    ),
    *(
        Route(f"/v2/{kind}sharedmemory/{path}", CONTROL, Access.GATHER, {method: f"{kind}SharedMemory{operation}"})
        for kind in ("system", "cuda")
        for method, path, operation in (
            ("GET", "status", "Status"),
            ("GET", "region/{region}/status", "RegionStatus"),
            ("POST", "region/{region}/register", "Register"),
            ("POST", "region/{region}/unregister", "RegionUnregister"),
            ("POST", "unregister", "Unregister"),
        )
    ),
    *_routes(TENSOR_ROWS, TENSORS, Access.TENSORS),
    *_routes(IMPORT_ROWS, TENSORS, Access.TENSORS),
    *_routes(ALIAS_ROWS, TENSORS, Access.TENSORS),
)

_OTHER: Final = Route("other", CONTROL, Access.GATHER, {})
"""Stands for every path that is no route; its template is the label of all these."""
_OTHER_BELOW: Final = {
    "/tensors/": _OTHER._replace(access=Access.TENSORS),
    "/aliases/": _OTHER._replace(access=Access.TENSORS),
    "/imports/": _OTHER._replace(access=Access.TENSORS),
    "/assets/": _OTHER._replace(access=Access.PUBLIC),
    "/docs/": _OTHER._replace(access=Access.PUBLIC),
    "/errors/": _OTHER._replace(access=Access.PUBLIC),
    "/v2/health/": _OTHER._replace(access=Access.PUBLIC),
}
"""The same, for paths that begin so: they are refused to the same callers as the routes that stand beside them."""


class RouteTable:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_path: dict[str, tuple[Route, tuple[str, ...]]] = {}
        self._by_size: dict[int, list[tuple[Route, list[str]]]] = {}
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Find `route` too, after those that are there; one without braces is found before all with braces."""
        segments = route.template.split("/")
        if "{" in route.template:
            self._by_size.setdefault(len(segments), []).append((route, segments))
        else:
            self._by_path[route.template] = route, ()

    def find(self, path: str) -> tuple[Route, tuple[str, ...]]:
        """The route of a decoded path, and the segments in the places of its braces.

        A path that is no route has one without operations, whose template is "other".
        """
        found = self._by_path.get(path)
        if found is not None:
            return found
        given = path.split("/")
        for route, segments in self._by_size.get(len(given), ()):
            parameters = _parameters(route, segments, given)
            if parameters is not None:
                return route, parameters
        return next((route for start, route in _OTHER_BELOW.items() if path.startswith(start)), _OTHER), ()

    def near(self, path: str) -> str | None:
        """The path of a route that `path`, which is none, probably means: its own segments stand in the braces."""
        given = path.strip("/").split("/")
        filled = (_filled(segments, given) for _, segments in self._by_size.get(len(given) + 1, ()))
        return near_name(path, [*self._by_path, *filter(None, filled)])


def _filled(segments: list[str], given: list[str]) -> str | None:
    """The path of a template with the segments of `given` in the places of its braces.

    None if another segment is not like its own in `given`.
    """
    found = [""]
    for segment, sent in zip(segments[1:], given, strict=True):
        if segment[:1] != "{" and near_name(sent, [segment]) is None:
            return None
        found.append(sent if segment[:1] == "{" else segment)
    return "/".join(found)


def _parameters(route: Route, segments: list[str], given: list[str]) -> tuple[str, ...] | None:
    """The segments of `given` in the places of the braces, None where it is no path of `route`."""
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
DATA_PLANE: Final[tuple[Operation, ...]] = tuple(
    row
    for rows in (OPERATOR_ROWS, TENSOR_ROWS, ALIAS_ROWS, IMPORT_ROWS)
    for operations in rows.values()
    for row in operations.values()
)
"""What OpenAPI says of the data plane's operations; the inference protocol's, whose models it shares, stand there."""
OPERATIONS: Final[Mapping[str, tuple[str, Route]]] = {
    operation: (method, route) for route in ROUTES for method, operation in route.operations.items()
}
"""Method and route of each operation."""
HEALTH: Final = frozenset(route.template for route in ROUTES if route.health is not None)
READINESS: Final = frozenset(route.template for route in ROUTES if route.health == "ready")


def path_of(operation: str, **segments: str) -> str:
    """The path of an operation, its braces filled from `segments`, which need no encoding."""
    return OPERATIONS[operation][1].template.format(**segments)


def template(path: str) -> str:
    """The template of a path, "other" for one that is no route."""
    return TABLE.find(path)[0].template


def is_protocol(path: str) -> bool:
    """Whether a path is below the inference protocol's root, a route or not: errors have another form there."""
    return path.startswith("/v2") and path[3:4] in ("", "/")

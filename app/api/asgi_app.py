"""The data plane: a pure ASGI callable in front of FastAPI.

Gathers never enter FastAPI's router and middleware, which cost more than the gather. Everything else does, and comes
back through here, so that one place checks Host, Origin and key, gives every answer its X-Request-ID and Server-Timing,
turns every error into the one error shape, and answers HEAD and OPTIONS.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from starlette.routing import Match
from starlette.types import ASGIApp

from app.api.asgi_request import TIMEOUT, Receive, RequestContext, RouteMatch, Scope, Send
from app.api.error_responses import STATUS
from app.api.routes.health import Readiness
from app.dispatch.admission import Admission
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.memory.error_tracebacks import drop_tracebacks
from app.security.authorizer import Authorizer
from app.security.host_header_check import HostHeaderCheck
from app.telemetry.request_metrics import Metrics

Route = Callable[[RequestContext], Awaitable[None]]
logger = logging.getLogger("gathernd")

_SECONDS: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_METHODS: Final = ("GET", "PUT", "POST", "DELETE", "PATCH")


class DataPlane:
    """Routes a request to its data-plane route, or to the control plane behind."""

    def __init__(
        self,
        control: ASGIApp,
        routes: Mapping[str, Route],
        *,
        infer: Route,
        tensors: Route,
        host_check: HostHeaderCheck,
        authorizer: Authorizer | None,
        readiness: Readiness,
        metrics: Metrics,
        admission: Admission,
        deadline: float,
    ) -> None:
        self.control = control
        self.routes = routes
        self.infer = infer
        self.tensors = tensors
        self.host_check = host_check
        self.authorizer = authorizer
        self.readiness = readiness
        self.metrics = metrics
        self.admission = admission
        self.deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self.control(scope, receive, send)
            return
        context = RequestContext(scope, receive, send, self.admission, self.deadline, self.metrics)
        code: str | None = None
        running = self.metrics.begin()
        try:
            route_match = context.route_match
            route: Route | None = self._match_route(context) if route_match is None else route_match.route
            authorizer = self.authorizer
            if authorizer is not None and (
                route_match is None or route_match.keys_version is not authorizer.keys_version
            ):
                if route_match is not None:
                    context.credential = route_match.credential
                authorizer.check(context)
                if route is not None and context.exchange is not None:
                    context.exchange.route_match = RouteMatch(
                        context.headers, route, authorizer.keys_version, context.credential
                    )
            if route is None:
                await self._control(context, running)
            else:
                if self.readiness.waiting_for:
                    raise self.readiness.error()
                if running > self.admission.requests:
                    raise self.admission.too_many()
                await route(context)
        except GatherError as error:
            code = error.code
            drop_tracebacks(error)
            if context.started:
                # What has been sent cannot be taken back: the connection ends here, so that no answer looks whole.
                context.status = STATUS[code]
                logger.error(
                    "an answer was cut: %s", error.detail, extra={"fields": {"request_id": context.request_id}}
                )
            else:
                await self._send_error(context, error)
        except ClientGone as error:
            code = "client_gone"
            drop_tracebacks(error)
        except asyncio.CancelledError as error:
            drop_tracebacks(error)
            # A stop cuts off what outlasts its timeout; nothing else cancels a request, whose task ends here.
            code = "not_ready"
            if not context.started:
                stopped = GatherError("not_ready", "the service stopped before the request was carried out")
                await context.send_error(stopped)
        except Exception as error:
            code = "internal"
            logger.exception("a request failed", extra={"fields": {"request_id": context.request_id}})
            drop_tracebacks(error)
            if not context.started:
                await context.send_error(GatherError("internal", "the service failed; its log has the request_id"))
        finally:
            context.reservation.release()
            self.metrics.count(context, code or context.code)

    def check_fields(self, context: RequestContext) -> None:
        """Raises malformed_request and forbidden for header fields that no request may have."""
        if context.repeated is not None:
            raise GatherError(
                "malformed_request", f"the header field {context.repeated.decode()} occurs more than once"
            )
        if b"host" not in context.headers and context.scope["http_version"] == "1.1":
            raise GatherError("malformed_request", "a request of HTTP/1.1 has the header field Host")
        self.host_check.check(context.headers)

    def _match_route(self, context: RequestContext) -> Route | None:
        """Check the header's fields, and find the route of a gather, None for all other requests.

        The match of a gather holds for each request with the same header, until other keys are in force.
        """
        self.check_fields(context)
        headers = context.headers
        path = context.path
        route = self.routes.get(path)
        if route is None and path.startswith("/v2/models/") and path.endswith("/infer"):
            route = self.infer
        if context.method != "POST":
            return None
        timeout = headers.get(TIMEOUT)
        if timeout is not None and route is not None:
            route = _limited(route, _seconds(timeout))
        if route is not None and context.exchange is not None:
            context.exchange.route_match = RouteMatch(headers, route, None, context.credential)
        return route

    async def _control(self, context: RequestContext, running: int) -> None:
        """Answer what is no gather."""
        path = context.path
        if path in self.routes or (path.startswith("/v2/models/") and path.endswith("/infer")):
            await self._answer_method(context, ("POST",))
        elif path == "/tensors" or path.startswith("/tensors/"):
            if running > self.admission.requests:
                raise self.admission.too_many()
            await self.tensors(context)
        elif path == "*" and context.method == "OPTIONS":
            await context.send_empty(204, (b"allow", b"GET, HEAD, PUT, POST, DELETE, OPTIONS"))
        else:
            await self._pass_on(context)

    async def _send_error(self, context: RequestContext, error: GatherError) -> None:
        self.metrics.count_limit(error)
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if context.headers.get(b"expect") is not None:
            # The client may be waiting for "100 Continue" and may never send the body: this connection is done.
            extra = ((b"connection", b"close"),)
        await context.send_error(error, *extra)

    async def _answer_method(self, context: RequestContext, methods: tuple[str, ...]) -> None:
        allow = b"allow", ", ".join((*methods, "OPTIONS")).encode()
        if context.method == "OPTIONS":
            await context.send_empty(204, allow)
            return
        error = GatherError("method_not_allowed", f"{context.path} does not take {context.method}")
        await context.send_error(error, allow)

    async def _pass_on(self, context: RequestContext) -> None:
        """Let the control plane answer, if it has the path and the method."""
        methods = self._methods(context.scope)
        if not methods:
            raise GatherError("not_found", f"no route has the path {context.path}")
        method = "GET" if context.method == "HEAD" and "GET" in methods else context.method
        if method not in methods:
            await self._answer_method(context, methods)
            return

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                context.started = True
                context.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", context.request_id.encode()),
                    (b"server-timing", context.timings.header_field()),
                ]
            await context.sender(message)

        scope = {**context.scope, "method": method, "context": context}
        try:
            await self.control(scope, context.receive, send)
        except ClientGone:
            context.status = 0  # what the framework made of it reached nobody
            raise

    def _methods(self, scope: Scope) -> tuple[str, ...]:
        """The methods that the control plane takes at the path of `scope`, HEAD with GET; () if it has no such path."""
        found: set[str] = set()
        for route in getattr(self.control, "routes", ()):
            if route.matches(scope)[0] is not Match.NONE:
                found.update(getattr(route, "methods", None) or ("GET",))
        if "GET" in found:
            found.add("HEAD")
        return tuple(name for name in ("GET", "HEAD", *_METHODS[1:]) if name in found)


def _limited(route: Route, seconds: float) -> Route:
    """`route` for requests whose caller waits for `seconds` only."""

    async def limited(context: RequestContext) -> None:
        context.timings.wait_at_most(seconds)
        await route(context)

    return limited


def _seconds(field: bytes) -> float:
    """The seconds in a field X-Gathernd-Timeout. Raises invalid_field."""
    if not _SECONDS.fullmatch(field):
        raise GatherError(
            "invalid_field",
            "X-Gathernd-Timeout must be a number of seconds, as in 0.25",
            pointer="/x-gathernd-timeout",
        )
    return float(field)

"""The data plane: a pure ASGI callable in front of FastAPI.

Gathers never enter FastAPI's router and middleware, which cost more than the gather. Everything else does, and comes
back through here, so that one place judges Host, Origin and key, gives every answer its X-Request-ID and Server-Timing,
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

from app.api.errors import STATUS
from app.api.exchange import TIMEOUT, Exchange, Receive, Scope, Send
from app.api.guard import Guard
from app.api.health import Readiness
from app.api.keys import Access
from app.api.metrics import Metrics
from app.dispatch.admission import Admission
from app.dispatch.pool import ClientGone
from app.errors import GatherError

Route = Callable[[Exchange], Awaitable[None]]
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
        guard: Guard,
        access: Access | None,
        readiness: Readiness,
        metrics: Metrics,
        admission: Admission,
        deadline: float,
    ) -> None:
        self.control = control
        self.routes = routes
        self.infer = infer
        self.tensors = tensors
        self.guard = guard
        self.access = access
        self.readiness = readiness
        self.metrics = metrics
        self.admission = admission
        self.deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self.control(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.admission, self.deadline, self.metrics)
        code: str | None = None
        running = self.metrics.begin()
        try:
            verdict = exchange.verdict
            route: Route | None = self._judge(exchange) if verdict is None else verdict[1]
            access = self.access
            if access is not None and (verdict is None or verdict[2] is not access.epoch):
                if verdict is not None:
                    exchange.credential = verdict[3]
                access.check(exchange)
                if exchange.cycle is not None and exchange.cycle.verdict is not None:
                    exchange.cycle.verdict = exchange.headers, route, access.epoch, exchange.credential
            if route is None:
                await self._control(exchange, running)
            else:
                if self.readiness.waiting_for:
                    raise self.readiness.error()
                if running > self.admission.requests:
                    raise self.admission.too_many()
                await route(exchange)
        except GatherError as error:
            code = error.code
            if exchange.started:
                # What has been sent cannot be taken back: the connection ends here, so that no answer looks whole.
                exchange.status = STATUS[code]
                logger.error(
                    "an answer was cut: %s", error.detail, extra={"fields": {"request_id": exchange.request_id}}
                )
            else:
                await self._send_error(exchange, error)
        except ClientGone:
            code = "client_gone"
        except asyncio.CancelledError:
            # A stop cuts off what outlasts its timeout; nothing else cancels a request, whose task ends here.
            code = "not_ready"
            if not exchange.started:
                stopped = GatherError("not_ready", "the service stopped before the request was carried out")
                await exchange.send_error(stopped)
        except Exception:
            code = "internal"
            logger.exception("a request failed", extra={"fields": {"request_id": exchange.request_id}})
            if not exchange.started:
                await exchange.send_error(GatherError("internal", "the service failed; its log has the request_id"))
        finally:
            exchange.lease.release()
            self.metrics.count(exchange, code or exchange.code)

    def check_fields(self, exchange: Exchange) -> None:
        """Raises malformed_request and forbidden for header fields that no request may have."""
        if exchange.repeated is not None:
            raise GatherError(
                "malformed_request", f"the header field {exchange.repeated.decode()} occurs more than once"
            )
        if b"host" not in exchange.headers and exchange.scope["http_version"] == "1.1":
            raise GatherError("malformed_request", "a request of HTTP/1.1 has the header field Host")
        self.guard.check(exchange.headers)

    def _judge(self, exchange: Exchange) -> Route | None:
        """Judge the header, and find the route of a gather, None for all other requests.

        What is found for a gather holds for each request with the same header; so does what the keys say, until they
        are others.
        """
        self.check_fields(exchange)
        headers = exchange.headers
        path = exchange.path
        route = self.routes.get(path)
        if route is None and path.startswith("/v2/models/") and path.endswith("/infer"):
            route = self.infer
        if exchange.method != "POST":
            return None
        timeout = headers.get(TIMEOUT)
        if timeout is not None and route is not None:
            route = _limited(route, _seconds(timeout))
        if route is not None and exchange.cycle is not None:
            exchange.cycle.verdict = headers, route, None, exchange.credential
        return route

    async def _control(self, exchange: Exchange, running: int) -> None:
        """Answer what is no gather."""
        path = exchange.path
        if path in self.routes or (path.startswith("/v2/models/") and path.endswith("/infer")):
            await self._answer_method(exchange, ("POST",))
        elif path == "/tensors" or path.startswith("/tensors/"):
            if running > self.admission.requests:
                raise self.admission.too_many()
            await self.tensors(exchange)
        elif path == "*" and exchange.method == "OPTIONS":
            await exchange.send_empty(204, (b"allow", b"GET, HEAD, PUT, POST, DELETE, OPTIONS"))
        else:
            await self._pass_on(exchange)

    async def _send_error(self, exchange: Exchange, error: GatherError) -> None:
        self.metrics.count_limit(error)
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if exchange.headers.get(b"expect") is not None:
            # The client may be waiting for "100 Continue" and may never send the body: this connection is done.
            extra = ((b"connection", b"close"),)
        await exchange.send_error(error, *extra)

    async def _answer_method(self, exchange: Exchange, methods: tuple[str, ...]) -> None:
        allow = b"allow", ", ".join((*methods, "OPTIONS")).encode()
        if exchange.method == "OPTIONS":
            await exchange.send_empty(204, allow)
            return
        error = GatherError("method_not_allowed", f"{exchange.path} does not take {exchange.method}")
        await exchange.send_error(error, allow)

    async def _pass_on(self, exchange: Exchange) -> None:
        """Let the control plane answer, if it has the path and the method."""
        methods = self._methods(exchange.scope)
        if not methods:
            raise GatherError("not_found", f"no route has the path {exchange.path}")
        method = "GET" if exchange.method == "HEAD" and "GET" in methods else exchange.method
        if method not in methods:
            await self._answer_method(exchange, methods)
            return

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                exchange.started = True
                exchange.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", exchange.request_id.encode()),
                    (b"server-timing", exchange.timing()),
                ]
            await exchange.sender(message)

        scope = {**exchange.scope, "method": method, "exchange": exchange}
        try:
            await self.control(scope, exchange.receive, send)
        except ClientGone:
            exchange.status = 0  # what the framework made of it reached nobody
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

    async def limited(exchange: Exchange) -> None:
        exchange.stages.wait_at_most(seconds)
        await route(exchange)

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

"""The ASGI application: a plain callable, because a framework's router and middleware cost more than a gather.

It checks Host, Origin and the API key, finds the handler, converts errors to the common error body, and responds to
OPTIONS requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from starlette.types import ASGIApp

from app.api.asgi_request import Field, Handler, Receive, RequestContext, RouteMatch, Scope, Send
from app.api.cors import CrossOrigin, is_preflight
from app.api.own_header_fields import SEQUENCE, TIMEOUT, WaitForSequence, check_target_shard, seconds_of, with_deadline
from app.api.route_rows.operation import CONTROL, GATHER
from app.api.route_table import TABLE, RouteTable
from app.api.wrong_path_hints import hint_for_method, hint_for_path
from app.dispatch.admission_control import Admission
from app.dispatch.request_thread_pool import ClientGone
from app.errors import CATALOGUE, GatherError
from app.memory.budget import Budget
from app.memory.error_tracebacks import drop_tracebacks
from app.security.authorizer import Access, Authorizer, needed_scope
from app.security.host_header_check import HostHeaderCheck
from app.server.readiness import Readiness
from app.telemetry.request_metrics import Metrics

logger = logging.getLogger("gathernd")

_ALL_METHODS: Final = b"GET, HEAD, PUT, POST, DELETE, OPTIONS"


class AsgiApp:
    """Passes each request to the handler of its operation (see `route_table`).

    `handlers` maps each operation to its handler; `lifespan` is an application that starts and stops the service.
    `cross_origin` is None if no page from another site may call the service. `routes` may extend the default table. In
    a cluster shard, `node` is the shard's name, and `wait_for_sequence` wraps the handlers that read the shard's
    ranges.
    """

    def __init__(
        self,
        lifespan: ASGIApp,
        handlers: Mapping[str, Handler],
        *,
        host_check: HostHeaderCheck,
        cross_origin: CrossOrigin | None,
        authorizer: Authorizer | None,
        readiness: Readiness,
        metrics: Metrics,
        admission: Admission,
        deadline: float,
        routes: RouteTable = TABLE,
        node: str | None = None,
        wait_for_sequence: WaitForSequence | None = None,
    ) -> None:
        self.lifespan = lifespan
        self.routes = routes
        self.node = node
        self.wait_for_sequence = wait_for_sequence
        self.handlers = handlers
        self.host_check = host_check
        self.cross_origin = cross_origin
        self.authorizer = authorizer
        self.readiness = readiness
        self.metrics = metrics
        self.admission = admission
        self.deadline = deadline

    @property
    def budget(self) -> Budget:
        """The memory budget for requests and connections."""
        return self.admission.budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self.lifespan(scope, receive, send)
            return
        context = RequestContext(scope, receive, send, self.admission, self.deadline, self.metrics)
        code: str | None = None
        running = self.metrics.begin()
        try:
            match = context.route_match
            if match is None:
                match = self._match(context)
            elif match.fields:
                context.exchange.add_fields(match.fields)
            authorizer = self.authorizer
            if authorizer is not None and match.keys_version is not authorizer.keys_version:
                authorizer.check(context.method, match.route.access, match.credential)
                if context.exchange.route_match is not None:
                    context.exchange.route_match = replace(match, keys_version=authorizer.keys_version)
            plane = match.plane
            if plane is not CONTROL:
                if plane is GATHER and self.readiness.waiting_for:
                    raise self.readiness.error()
                if running > self.admission.requests:
                    raise self.admission.too_many()
            await match.handler(context)
        except GatherError as error:
            code = error.code
            drop_tracebacks(error)
            if context.started:
                # Part of the response was sent: close the connection, so that it does not look complete.
                context.status = CATALOGUE[code].status
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
            # Requests are canceled only when they outlast the shutdown timeout. The request's task ends here.
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
            context.memory.release()
            for change in context.changes:
                self.metrics.log_change(context, change)
            self.metrics.count(context, code or context.code)

    def _check_fields(self, context: RequestContext) -> None:
        """Check the header fields that every request may have.

        Raises malformed_request, forbidden and precondition_failed.
        """
        if context.repeated is not None:
            raise GatherError(
                "malformed_request",
                f"the header field {context.repeated.decode()} occurs more than once",
                hint=f"Send the header field {context.repeated.decode()} once.",
            )
        if b"host" not in context.headers and context.scope["http_version"] == "1.1":
            raise GatherError(
                "malformed_request",
                "an HTTP/1.1 request needs the header field Host",
                hint="Send the header field Host.",
            )
        self.host_check.check(context.headers)
        if self.node is not None:
            check_target_shard(context.headers, self.node)

    def _match(self, context: RequestContext) -> RouteMatch:
        """Check the header fields, and find the handler.

        The match of a gather is cached for requests with the same header.
        """
        headers, method = context.headers, context.method
        cross_origin, preflight = self.cross_origin, None
        fields: Sequence[Field] = ()
        if cross_origin is not None:
            if is_preflight(method, headers):
                preflight = cross_origin.answer_preflight
            else:
                fields = cross_origin.fields(method, headers.get(b"origin"))
                context.exchange.add_fields(fields)
        self._check_fields(context)
        route, parameters = self.routes.find(context.path)
        operation = route.operation(method)
        if needed_scope(method, route.access) == "tensors":
            self.host_check.check_change(headers)
        plane = CONTROL if operation is None else route.plane
        handler = self._refuse if operation is None else self.handlers[operation.name]
        if preflight is not None:
            route, handler = route._replace(access=Access.PUBLIC), preflight
        if self.wait_for_sequence is not None and SEQUENCE in headers:
            handler = self.wait_for_sequence(handler, headers[SEQUENCE])
        timeout = headers.get(TIMEOUT)
        if timeout is not None and plane is GATHER:
            handler = with_deadline(handler, seconds_of(timeout))
        match = RouteMatch(headers, route, parameters, plane, handler, None, context.credential, fields)
        context.route_match = match
        if plane is GATHER:
            context.exchange.route_match = match
        return match

    async def _send_error(self, context: RequestContext, error: GatherError) -> None:
        self.metrics.count_limit(error)
        extra: tuple[Field, ...] = ()
        if context.headers.get(b"expect") is not None:
            # The client may be waiting for "100 Continue" and never send the body, so the connection must close.
            extra = ((b"connection", b"close"),)
        await context.send_error(error, *extra)

    async def _refuse(self, context: RequestContext) -> None:
        """Respond to a method that has no handler: 204 for OPTIONS, 405 for any other method, both with Allow.

        Raises not_found for an unknown path.
        """
        path, method = context.path, context.method
        assert context.route_match is not None
        route = context.route_match.route
        allow = route.allow()
        if not route.operations:
            if (path, method) != ("*", "OPTIONS"):
                raise GatherError("not_found", f"no route has the path {path}", hint=hint_for_path(path))
            allow = _ALL_METHODS
        if method == "OPTIONS":
            await context.send_empty(204, (b"allow", allow))
            return
        hint = hint_for_method(route, method)
        error = GatherError("method_not_allowed", f"{path} does not accept {method}", hint=hint)
        await context.send_error(error, (b"allow", allow))

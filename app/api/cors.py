"""Pages of other sites, which browsers let call only where the service says so (CORS): none, unless the settings do."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.dataplane import DataPlane
from app.api.exchange import Exchange
from app.errors import GatherError

READABLE: Final = (
    "ETag",
    "Inference-Header-Content-Length",
    "Location",
    "Retry-After",
    "Server-Timing",
    "X-Gathernd-Data-ETag",
    "X-Gathernd-Device",
    "X-Gathernd-Dialect",
    "X-Request-ID",
)
"""The header fields of answers that a page may read beside those that it always may."""
_OWN: Final = (b"content-length", b"content-type")
_PLAIN: Final = b"text/plain; charset=utf-8"


class AcrossOrigins:
    """`plane` for requests with the field Origin: pages of `origins` may make them and read the answers."""

    def __init__(self, plane: DataPlane, answer: ASGIApp, origins: Sequence[str]) -> None:
        self._plane = plane
        self._answer = answer
        self._middleware = CORSMiddleware(
            self._plainly,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST", "PUT", "DELETE"),
            allow_headers=("*",),
            expose_headers=READABLE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["method"] == "OPTIONS" and any(
            name == b"access-control-request-method" for name, _ in scope["headers"]
        ):
            await self._tell(
                Exchange(scope, receive, send, self._plane.admission, self._plane.deadline, self._plane.metrics)
            )
        else:
            await self._middleware(scope, receive, send)

    async def _plainly(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Header fields are added to ASGI's messages, so that the shorter ways past them (`app.api.cycle`) are no use.
        await self._answer({**scope, "extensions": {}}, receive, send)

    async def _tell(self, exchange: Exchange) -> None:
        """Answer a browser that asks what a page may do; it sends no key when it asks."""
        metrics = self._plane.metrics
        metrics.begin()
        try:
            self._plane.guard.check(exchange.headers)
            answer = self._middleware.preflight_response(Headers(scope=exchange.scope))
            if answer.status_code != HTTPStatus.OK:
                raise GatherError("forbidden", bytes(answer.body).decode())
            fields = [field for field in answer.raw_headers if field[0] not in _OWN]
            await exchange.send(answer.status_code, _PLAIN, bytes(answer.body), *fields)
        except GatherError as error:
            await exchange.send_error(error)
        finally:
            exchange.lease.release()
            metrics.count(exchange, exchange.code)

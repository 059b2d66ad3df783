"""CORS: which pages of other sites browsers let call the service: none, unless GATHERND_CORS_ORIGINS names origins.

Starlette's middleware decides which origins are allowed, and what preflight requests and answers are told. It does not
wrap the application: what the server writes at once (most gathers, and its own refusals) does not pass through an ASGI
`send`, and a refused preflight request has the one shape of errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.asgi_app import DataPlane
from app.api.asgi_request import RequestContext
from app.errors import GatherError

READABLE: Final = (
    "Allow",
    "ETag",
    "Inference-Header-Content-Length",
    "Location",
    "Retry-After",
    "Server-Timing",
    "WWW-Authenticate",
    "X-Gathernd-Data-ETag",
    "X-Gathernd-Data-Version",
    "X-Gathernd-Device",
    "X-Gathernd-Dialect",
    "X-Gathernd-Dtype",
    "X-Gathernd-Replaced",
    "X-Gathernd-Shape",
    "X-Request-ID",
)
"""The header fields of answers that a page may read beside those that it always may."""
_OWN: Final = (b"content-length", b"content-type")
_PLAIN: Final = b"text/plain; charset=utf-8"
_CACHED: Final = ("GET", "HEAD")
_VARY: Final = (b"vary", b"Origin")


def is_affected(scope: Scope) -> bool:
    """Whether a request is for `CrossOrigin`: it has the field Origin, or its answer may be kept by a cache."""
    return scope["method"] in _CACHED or any(name == b"origin" for name, _ in scope["headers"])


class CrossOrigin:
    """Answers requests with the field Origin: pages of `origins` may make them and read the answers.

    Other answers that a cache may keep say that Origin matters: a browser that has loaded a path without that field
    would take the answer, which no page may read, for the one to a page.

    `answer` is the ASGI entry of `plane` for all but preflight requests.
    """

    def __init__(self, plane: DataPlane, answer: ASGIApp, origins: Sequence[str]) -> None:
        self._plane = plane
        self._answer = answer
        self._rules = CORSMiddleware(
            answer,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST", "PUT", "DELETE"),
            allow_headers=("*",),
            expose_headers=READABLE,
        )
        self._always = [_VARY]
        self._always += [(name.lower().encode(), value.encode()) for name, value in self._rules.simple_headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        exchange = scope["extensions"]["gathernd"]
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if origin is None:
            exchange.add_fields((_VARY,))
            await self._answer(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and any(
            name == b"access-control-request-method" for name, _ in scope["headers"]
        ):
            plane = self._plane
            await self._answer_preflight(
                RequestContext(scope, receive, send, plane.admission, plane.deadline, plane.metrics)
            )
            return
        exchange.add_fields(self._fields(origin))
        await self._answer(scope, receive, send)

    def _fields(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        """The header fields that an answer to a page of `origin` carries for its browser."""
        if self._rules.is_allowed_origin(origin.decode("latin-1")):
            return [*self._always, (b"access-control-allow-origin", origin)]
        return self._always

    async def _answer_preflight(self, context: RequestContext) -> None:
        """Answer a preflight request, in which a browser asks what a page may do; it sends no key with it."""
        metrics = self._plane.metrics
        metrics.begin()
        try:
            self._plane.check_fields(context)
            answer = self._rules.preflight_response(Headers(scope=context.scope))
            if answer.status_code != HTTPStatus.OK:
                raise GatherError(
                    "forbidden",
                    bytes(answer.body).decode(),
                    hint="Have the operator add the page's origin to GATHERND_CORS_ORIGINS.",
                )
            fields = [field for field in answer.raw_headers if field[0] not in _OWN]
            await context.send(answer.status_code, _PLAIN, bytes(answer.body), *fields)
        except GatherError as error:
            await context.send_error(error)
        finally:
            context.reservation.release()
            metrics.count(context, context.code)

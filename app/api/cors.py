"""CORS: which pages from other sites may call the service from a browser.

None may, unless GATHERND_CORS_ORIGINS lists their origins. Starlette's middleware decides which origins are allowed,
and provides the header fields of responses. The middleware does not wrap the application, because responses that the
server writes directly (most gathers, and its own refusals) do not pass through an ASGI `send`, and because a refused
preflight request must get the common error body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from app.api.asgi_request import Field, RequestContext
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
    "X-Gathernd-Missing",
    "X-Gathernd-Replaced",
    "X-Gathernd-Shape",
    "X-Request-ID",
)
"""Header fields of responses that a page may read, in addition to the fields that CORS always allows."""
_OWN: Final = (b"content-length", b"content-type")
_PLAIN: Final = b"text/plain; charset=utf-8"
_CACHED: Final = ("GET", "HEAD")
_VARY: Final = (b"vary", b"Origin")


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return True for a browser's preflight request, which has no API key."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


class CrossOrigin:
    """The CORS rules: pages of `origins` may make requests and read the responses."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._rules = CORSMiddleware(
            _never_called,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST", "PUT", "DELETE"),
            allow_headers=("*",),
            expose_headers=READABLE,
        )
        self._always = [_VARY]
        self._always += [(name.lower().encode(), value.encode()) for name, value in self._rules.simple_headers.items()]

    def fields(self, method: str, origin: bytes | None) -> list[Field]:
        """Return the CORS header fields of the response to a request with this Origin field.

        A cacheable response to a request without Origin gets `Vary: Origin`. Otherwise a browser could reuse the cached
        response, which no page may read, for a request that a page makes.
        """
        if origin is None:
            return [_VARY] if method in _CACHED else []
        if self._rules.is_allowed_origin(origin.decode("latin-1")):
            return [*self._always, (b"access-control-allow-origin", origin)]
        return self._always

    async def answer_preflight(self, context: RequestContext) -> None:
        """Answer a preflight request. Raises forbidden for a request that a page may not make."""
        answer = self._rules.preflight_response(Headers(scope=context.scope))
        if answer.status_code != HTTPStatus.OK:
            raise GatherError(
                "forbidden",
                bytes(answer.body).decode(),
                hint="Have the operator add the page's origin to GATHERND_CORS_ORIGINS.",
            )
        fields = [field for field in answer.raw_headers if field[0] not in _OWN]
        await context.send(answer.status_code, _PLAIN, bytes(answer.body), *fields)


async def _never_called(*_: Any) -> None:
    raise AssertionError("the middleware is asked for its rules alone")

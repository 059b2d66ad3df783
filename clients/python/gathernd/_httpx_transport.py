"""A transport over httpx, for proxies from the environment and for a caller's own httpx transport."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import Any, Final

import httpx
import numpy as np

from . import _failures
from ._connection_settings import ConnectionSettings
from ._messages import MAX_BYTES_WITHOUT_LENGTH, Answer, Request, body_chunks
from .errors import ConnectError, Disconnected, Timeout, TransportError, UnexpectedAnswer

# One connection per concurrent call. Up to 64 idle connections are kept for 5 s, which is much shorter than the
# keep-alive of the service (GATHERND_KEEP_ALIVE) and of proxies.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=5.0)


def _options(settings: ConnectionSettings) -> dict[str, Any]:
    timeouts, address = settings.timeouts, settings.address
    return {
        "base_url": f"http://{address.host_field}" if address.socket_path else address.url,
        "timeout": httpx.Timeout(connect=timeouts.connect, read=timeouts.read, write=timeouts.write, pool=None),
        "headers": dict(settings.headers),
        "limits": _LIMITS,
        "verify": settings.tls_context() if settings.address.tls else False,
    }


class HttpxTransport:
    """Sends requests through an httpx client; `transport` is passed to it.

    A forked child creates its own httpx client, unless `transport` is given.
    """

    def __init__(self, settings: ConnectionSettings, transport: httpx.BaseTransport | None) -> None:
        self._settings = settings
        self._is_given = transport is not None
        self._options = _options(settings)
        self._http = httpx.Client(transport=transport, **self._options)
        self._process = os.getpid()
        self._parents: list[httpx.Client] = []

    def send(self, request: Request[Any], until: float | None, headers: dict[str, str]) -> Answer:
        """Send `request` with additional `headers` and return its answer before `until` (in `monotonic()` time)."""
        begun, http = monotonic(), self._own_client()
        try:
            response = http.send(_build(http, request, until, headers), stream=True)
            try:
                receiver = _BodyReceiver(response, request, until)
                assert isinstance(response.stream, httpx.SyncByteStream)
                for chunk in response.stream:
                    receiver.write(chunk)
                return receiver.answer()
            finally:
                response.close()
        except (httpx.HTTPError, TimeoutError) as error:
            raise transport_error(error, self._settings.address.url, request, monotonic() - begun) from error

    def close(self) -> None:
        """Close the connections."""
        self._own_client().close()

    def _own_client(self) -> httpx.Client:
        """Return the httpx client of this process."""
        if self._process != os.getpid() and not (self._is_given or self._http.is_closed):
            # Keep the parent's client untouched: a thread that the fork did not copy may have left it locked.
            self._parents.append(self._http)
            self._http = httpx.Client(**self._options)
            self._process = os.getpid()
        return self._http


class AsyncHttpxTransport:
    """Sends requests through an asynchronous httpx client; `transport` is passed to it.

    Each event loop gets its own httpx client, unless `transport` is given.
    """

    def __init__(self, settings: ConnectionSettings, transport: httpx.AsyncBaseTransport | None) -> None:
        self._settings = settings
        self._is_given = transport is not None
        self._options = _options(settings)
        self._http = httpx.AsyncClient(transport=transport, **self._options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: Request[Any], until: float | None, headers: dict[str, str]) -> Answer:
        """Send `request` with additional `headers` and return its answer before `until` (in `monotonic()` time)."""
        begun, http = monotonic(), self._own_client()
        try:
            response = await http.send(_build(http, request, until, headers), stream=True)
            try:
                receiver = _BodyReceiver(response, request, until)
                assert isinstance(response.stream, httpx.AsyncByteStream)
                async for chunk in response.stream:
                    receiver.write(chunk)
                return receiver.answer()
            finally:
                await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            raise transport_error(error, self._settings.address.url, request, monotonic() - begun) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._own_client().aclose()

    def _own_client(self) -> httpx.AsyncClient:
        """Return the httpx client of the running event loop."""
        if not (self._is_given or self._http.is_closed) and self._loop is not asyncio.get_running_loop():
            if self._loop is not None:  # otherwise the client has no connections yet
                self._http = httpx.AsyncClient(**self._options)
            self._loop = asyncio.get_running_loop()
        return self._http


def _build(
    http: httpx.Client | httpx.AsyncClient, request: Request[Any], until: float | None, headers: dict[str, str]
) -> httpx.Request:
    """Convert `request` to an httpx request. Raises TimeoutError if the deadline `until` has passed."""
    all_headers = {**request.headers, **headers}
    options: dict[str, Any] = {}
    if until is not None:
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        limits = http.timeout
        options["timeout"] = httpx.Timeout(
            **{name: left if limit is None else min(left, limit) for name, limit in limits.as_dict().items()}
        )
    if request.body:
        all_headers["content-length"] = str(sum(map(len, request.body)))
    made = http.build_request(
        request.method, request.path, params=request.query or None, headers=all_headers, **options
    )
    if request.body:
        made.stream = _BodyStream(request)
    return made


class _BodyStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request's body in chunks, which are views of its buffers; it can be iterated again for a retry."""

    def __init__(self, request: Request[Any]) -> None:
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        for chunk in body_chunks(self._request.body):
            yield chunk  # type: ignore[misc]  # httpx accepts any object with a length and the buffer interface
            sent += len(chunk)
            if self._request.progress is not None:
                self._request.progress(sent)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


class _BodyReceiver:
    """Receives an answer's body into a buffer of Content-Length bytes, so that there is only one copy in memory."""

    def __init__(self, response: httpx.Response, request: Request[Any], until: float | None) -> None:
        self._response = response
        self._until = until
        self._progress = request.progress if request.method == "GET" else None
        self._headers = {name.lower(): value for name, value in response.headers.items()}
        length = self._headers.get("content-length", "")
        self._sized: memoryview | None = None
        if length.isdigit():
            into = request.receive_into
            given = into(response.status_code, self._headers) if into and response.status_code == 200 else None
            self._sized = np.empty(int(length), np.uint8).data if given is None else given
        self._growing = bytearray()
        self._received = 0

    def write(self, chunk: bytes) -> None:
        """Add the next chunk. Raises UnexpectedAnswer if a body without a length is too long, and TimeoutError."""
        end = self._received + len(chunk)
        if self._sized is None:
            self._growing += chunk
            if end > MAX_BYTES_WITHOUT_LENGTH:
                raise UnexpectedAnswer(
                    "the answer has no announced length and does not end", self._response.status_code
                )
        else:
            self._sized[self._received : end] = chunk
        self._received = end
        if self._progress is not None:
            self._progress(end)
        if self._until is not None and monotonic() > self._until:
            raise TimeoutError

    def answer(self) -> Answer:
        """Return the answer, after its last chunk."""
        body = memoryview(self._growing) if self._sized is None else self._sized[: self._received]
        return Answer(self._response.status_code, self._headers, body)


# Maps httpx errors to ours; the first matching row applies. All errors of httpx during an exchange are HTTPErrors.
_ERROR_OF_HTTPX: Final[tuple[tuple[type[Exception], type[TransportError]], ...]] = (
    (httpx.ConnectError, ConnectError),
    (httpx.ConnectTimeout, ConnectError),
    (httpx.PoolTimeout, ConnectError),
    (httpx.ProxyError, ConnectError),
    (httpx.UnsupportedProtocol, ConnectError),
    (httpx.TimeoutException, Timeout),
    (TimeoutError, Timeout),
    (httpx.NetworkError, Disconnected),
    (httpx.RemoteProtocolError, Disconnected),
    (httpx.HTTPError, TransportError),
)


def transport_error(
    error: httpx.HTTPError | TimeoutError, url: str, request: Request[Any], seconds: float
) -> TransportError:
    """Convert an error of httpx, or the TimeoutError of a call's deadline, to an error of this package."""
    error_class = next(ours for theirs, ours in _ERROR_OF_HTTPX if isinstance(error, theirs))
    if error_class is ConnectError:
        return _failures.not_connected(url, error)
    if error_class is Timeout:
        return _failures.not_answered_in_time(url, request, seconds, "answered")
    if error_class is Disconnected:
        return _failures.disconnected(url, request, seconds, error)
    return TransportError(f"{request} to {url} failed: {error}")

"""Requests over httpx, for what it alone can do: proxies of the environment, and transports that a caller gives."""

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

# As many connections as there are calls at a time. 64 idle ones are kept for 5 s: far less than the service
# (GATHERND_KEEP_ALIVE) and proxies on the way keep them.
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
    """Sends requests by an httpx client; `transport` is the one to give it, or None.

    The child of a fork has an httpx client of its own, unless a `transport` is given, of which there is only one.
    """

    def __init__(self, settings: ConnectionSettings, transport: httpx.BaseTransport | None) -> None:
        self._settings = settings
        self._is_given = transport is not None
        self._options = _options(settings)
        self._http = httpx.Client(transport=transport, **self._options)
        self._process = os.getpid()
        self._parents: list[httpx.Client] = []

    def send(self, request: Request[Any], until: float | None, headers: dict[str, str]) -> Answer:
        """Send `request` with further `headers` and return its answer, at `until` (of `monotonic`) at the latest."""
        begun, http = monotonic(), self._own()
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
        self._own().close()

    def _own(self) -> httpx.Client:
        """The httpx client of this process."""
        if self._process != os.getpid() and not (self._is_given or self._http.is_closed):
            # That of the parent is kept as it is: a thread that is not here may have left it locked.
            self._parents.append(self._http)
            self._http = httpx.Client(**self._options)
            self._process = os.getpid()
        return self._http


class AsyncHttpxTransport:
    """Sends requests by an httpx client of asyncio; `transport` is the one to give it, or None.

    Each event loop has an httpx client of its own, unless a `transport` is given, of which there is only one.
    """

    def __init__(self, settings: ConnectionSettings, transport: httpx.AsyncBaseTransport | None) -> None:
        self._settings = settings
        self._is_given = transport is not None
        self._options = _options(settings)
        self._http = httpx.AsyncClient(transport=transport, **self._options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: Request[Any], until: float | None, headers: dict[str, str]) -> Answer:
        """Send `request` with further `headers` and return its answer, at `until` (of `monotonic`) at the latest."""
        begun, http = monotonic(), self._own()
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
        await self._own().aclose()

    def _own(self) -> httpx.AsyncClient:
        """The httpx client of the event loop that runs."""
        if not (self._is_given or self._http.is_closed) and self._loop is not asyncio.get_running_loop():
            if self._loop is not None:  # else it has no connection yet
                self._http = httpx.AsyncClient(**self._options)
            self._loop = asyncio.get_running_loop()
        return self._http


def _build(
    http: httpx.Client | httpx.AsyncClient, request: Request[Any], until: float | None, headers: dict[str, str]
) -> httpx.Request:
    """The httpx request that sends `request`. Raises TimeoutError if `until` is over."""
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
    """A request's body in chunks that are views of its buffers; it can be iterated, and so sent, again."""

    def __init__(self, request: Request[Any]) -> None:
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        for chunk in body_chunks(self._request.body):
            yield chunk  # type: ignore[misc]  # httpx sends whatever has a length and the buffer interface
            sent += len(chunk)
            if self._request.progress is not None:
                self._request.progress(sent)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


class _BodyReceiver:
    """Receives the body of an answer into a buffer of its Content-Length, so that memory holds it once."""

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
        """Add the next chunk. Raises UnexpectedAnswer for a body without a length that does not end, TimeoutError."""
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
        """The answer, after its last chunk."""
        body = memoryview(self._growing) if self._sized is None else self._sized[: self._received]
        return Answer(self._response.status_code, self._headers, body)


# Our error for each of httpx's; the first row that fits counts. Whatever httpx raises while it sends and receives is an
# HTTPError.
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
    """The error of this package for one of httpx, or for the end of the time that a call may take."""
    error_class = next(ours for theirs, ours in _ERROR_OF_HTTPX if isinstance(error, theirs))
    if error_class is ConnectError:
        return _failures.not_connected(url, error)
    if error_class is Timeout:
        return _failures.not_answered_in_time(url, request, seconds, "answered")
    if error_class is Disconnected:
        return _failures.disconnected(url, request, seconds, error)
    return TransportError(f"{request} to {url} failed: {error}")

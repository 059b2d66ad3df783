"""The base of the client: sends requests, waits, and retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from numpy.typing import NDArray

from .. import _endpoints
from .._arrays_of_others import has_no_type
from .._async_waiting import packed, pause_after, sleep
from .._asyncio_transport import AsyncioTransport
from .._connection_settings import Certificate, ConnectionSettings, Verify, connection_settings, normalized_headers
from .._key_arrays import as_key_type
from .._messages import Answer, Request
from .._retries import READY_PAUSE_S, Attempts, Retries, call_end, may_become_ready
from ..errors import NotReady, TransportError, UnsupportedDtype

if TYPE_CHECKING:
    import httpx

    from .._httpx_transport import AsyncHttpxTransport

T = TypeVar("T")


class AsyncRequests:
    """The connections of a client; sends requests over them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float | httpx.Timeout | None = 60.0,
        retries: int | Retries = 3,
        headers: Mapping[str, str] | None = None,
        verify: Verify | None = None,
        cert: Certificate | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = connection_settings(url, key, timeout, retries, headers, verify, cert, transport)
        self._retries = settings.retries
        self._transport = AsyncioTransport(settings) if settings.direct else _httpx_transport(settings, transport)

    async def ready(self, wait: float = 0.0) -> bool:
        """Return True if the service is ready to gather. Retries for up to `wait` seconds until it is.

        Immediately raises errors that waiting cannot resolve, such as UntrustedCertificate and Unauthorized.
        """
        end = monotonic() + wait
        while True:
            try:
                await self._run(_endpoints.ready(), max(end - monotonic(), 1.0), None, Retries(0))
            except (TransportError, NotReady) as error:
                if not may_become_ready(error):
                    raise
                if monotonic() + READY_PAUSE_S >= end:
                    return False
                await sleep(READY_PAUSE_S)
            else:
                return True

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _dtype(self, name: str, until: float | None, headers: Mapping[str, str] | None) -> str:
        """Return the element type of the resident tensor `name`; `until` is the deadline in `monotonic()` time."""
        info = await self._run_until(_endpoints.metadata(name), until, headers)
        return info.dtype

    async def _run_by_key(
        self,
        make: Callable[[Any], Request[T]],
        name: str,
        keys: Any,
        until: float | None,
        headers: Mapping[str, str] | None,
    ) -> T:
        """Send the request `make(keys)`; `until` is the deadline in `monotonic()` time.

        A list of keys has no type of its own. If the type that was sent differs from the type of the keys of the table
        `name`, this converts the list to the latter and tries again.
        """
        try:
            return await self._run_until(await packed((keys,), make, keys), until, headers)
        except UnsupportedDtype:
            typed = await self._typed_keys(name, keys, until, headers) if has_no_type(keys) else None
            if typed is None:
                raise
        return await self._run_until(await packed((typed,), make, typed), until, headers)

    async def _typed_keys(
        self, name: str, keys: Any, until: float | None, headers: Mapping[str, str] | None
    ) -> NDArray[Any] | None:
        """Convert a list of keys to the type of the table's keys. Returns None if that is not possible."""
        info = await self._run_until(_endpoints.metadata(name), until, headers)
        return None if info.keys is None else as_key_type(keys, info.keys.dtype)

    async def _run(
        self,
        request: Request[T],
        timeout: float | None,
        headers: Mapping[str, str] | None,
        retries: Retries | None = None,
    ) -> T:
        """Send `request`, retry it as `Attempts` allows, and return the parsed response."""
        return await self._run_until(request, call_end(timeout), headers, retries)

    async def _run_until(
        self,
        request: Request[T],
        until: float | None,
        headers: Mapping[str, str] | None,
        retries: Retries | None = None,
    ) -> T:
        """Like `_run`, but with a deadline in `monotonic()` time, which several requests of one call can share."""
        fields = normalized_headers(headers) if headers else {}
        attempts = Attempts(request, retries or self._retries, until)
        while True:
            if until is not None:
                fields["x-gathernd-timeout"] = f"{max(until - monotonic(), 1e-6):.6f}"
            outcome: Answer | TransportError
            try:
                outcome = await self._transport.send(request, until, fields)
            except TransportError as error:
                outcome = error
            pause = await pause_after(attempts, outcome)
            if pause is None:
                return attempts.result
            await sleep(pause)


def _httpx_transport(settings: ConnectionSettings, transport: httpx.AsyncBaseTransport | None) -> AsyncHttpxTransport:
    from .._httpx_transport import AsyncHttpxTransport  # noqa: PLC0415  (httpx is slow to import, and seldom needed)

    return AsyncHttpxTransport(settings, transport)

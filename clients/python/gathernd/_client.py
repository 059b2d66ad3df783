"""The two clients, `GatherND` and `AsyncGatherND`: the same calls, each over an httpx client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from numpy.typing import NDArray

from . import _endpoints
from ._body_streams import BodyReceiver, build_request
from ._endpoints import Answer, Progress, Reduction, Request, TensorInfo
from ._retries import Retries, sending, transport_error
from .errors import TransportError

T = TypeVar("T")


class GatherND:
    """A client of the service at `url`; safe to use from several threads.

    timeout    seconds that connecting, and each pause in sending or receiving, may take; or an httpx.Timeout
    key        API key, where the service asks for one
    retries    how often a request may be sent again where that is safe; `Retries` limits the time it may take, too
    transport  an httpx transport to use instead of the network, for tests

    Arrays may be NumPy arrays, anything with `__array__` or DLPack, or lists. They travel in the binary format; types
    that it lacks (complex128 and string) go as JSON with base64. Every method raises `ServiceError`s (one class for
    each code, in `gathernd.errors`) and `TransportError`s, and TypeError for an array of a type that the service does
    not have.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float | httpx.Timeout = 60.0,
        key: str | None = None,
        retries: int | Retries = 3,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = _as_retries(retries)
        self._http = httpx.Client(
            base_url=url, timeout=timeout, headers=_headers(key), limits=_LIMITS, transport=transport
        )

    def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, dialect: str = "onnx-13", device: str = "auto"
    ) -> NDArray[Any]:
        """GatherND: each tuple in the last dimension of `indices` picks an element or slice of `data`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. `indices` has rank q >= 1 and
        integer type; under an ONNX dialect narrower integers are sent as int64. Returns an array of data's type and of
        shape indices.shape[:-1] + data.shape[batch_dims + indices.shape[-1]:].

        dialect is onnx-13, onnx-12, onnx-11 or openvino-8; device is auto, cpu or gpu.
        """
        return self._run(_endpoints.gather("gathernd", data, indices, batch_dims, dialect, device))

    def gather(
        self, data: Any, indices: Any, axis: int = 0, *, dialect: str = "onnx-13", device: str = "auto"
    ) -> NDArray[Any]:
        """Gather: each entry of `indices`, of any rank, picks a slice of `data` along `axis`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. Returns an array of data's type and
        of shape data.shape[:axis] + indices.shape + data.shape[axis + 1:].

        dialect is onnx-13, onnx-11 or onnx-1; device is auto, cpu or gpu.
        """
        return self._run(_endpoints.gather("gather", data, indices, axis, dialect, device))

    def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, dialect: str = "onnx-13", device: str = "auto"
    ) -> NDArray[Any]:
        """GatherElements: each entry of `indices` picks the item of `data` at its own place, but for `axis`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. `indices` has the same rank, and on
        every axis but `axis` at most data's size. Returns an array of data's type and of the shape of `indices`, as
        NumPy's take_along_axis does.

        dialect is onnx-13 or onnx-11; device is auto or cpu.
        """
        return self._run(_endpoints.gather("gather_elements", data, indices, axis, dialect, device))

    def put(
        self,
        name: str,
        array: Any,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefault: bool = False,
        lock: bool = False,
        progress: Progress | None = None,
    ) -> TensorInfo:
        """Make `array` the resident tensor `name`, whole or not at all.

        `if_match` is the ETag that the tensor must have; `if_none_match="*"` asks that there is none of that name
        (PreconditionFailed). `prefault` has the service read the content into memory ahead of requests, `lock` keeps it
        there where the system allows that. `progress` is called with the bytes sent so far. A memory-mapped array is
        read as it is sent.
        """
        return self._run(_endpoints.put(name, array, if_match, if_none_match, prefault, lock, progress))

    def get(
        self,
        name: str,
        *,
        rows: tuple[int, int] | None = None,
        if_match: str | None = None,
        progress: Progress | None = None,
    ) -> NDArray[Any]:
        """The resident tensor `name`, or its rows a to b (b not included) of the first dimension.

        `if_match` is the ETag that the tensor must have (PreconditionFailed), for rows that belong together.
        `progress` is called with the bytes received so far. Raises TensorNotFound and RangeNotSatisfiable.
        """
        return self._run(_endpoints.get(name, rows, if_match, progress))

    def metadata(self, name: str) -> TensorInfo:
        """Type, shape, ETag and times of the resident tensor `name`. Raises TensorNotFound."""
        return self._run(_endpoints.metadata(name))

    def tensors(self, *, page: int | None = None) -> Iterator[TensorInfo]:
        """Every resident tensor by name, asked for in pages of `page` tensors."""
        after = None
        while True:
            found = self._run(_endpoints.tensors(after, page))
            yield from found.tensors
            after = found.next
            if after is None:
                return

    def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Remove the resident tensor `name`. Raises TensorNotFound, and PreconditionFailed for another ETag."""
        self._run(_endpoints.delete(name, if_match))

    def scatter(
        self,
        name: str,
        indices: Any,
        updates: Any,
        reduction: Reduction = "none",
        *,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Change slices of the resident tensor `name` (ScatterND as ONNX 18 has it); returns its new ETag.

        `indices` has shape [..., k], `updates` shape indices.shape[:-1] + tensor.shape[k:] and the tensor's type.
        `reduction` says how an update meets the old value. Gathers see all of a scatter or nothing. It is sent with an
        Idempotency-Key, a new one unless given, under which the service carries it out once however often it is sent.
        """
        return self._run(_endpoints.scatter(name, indices, updates, reduction, if_match, idempotency_key))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, request: Request[T]) -> T:
        """Send the request, again where `sending` says so, and return what its answer holds."""
        attempts = sending(request, self._retries)
        pause = next(attempts)
        while True:
            if pause:
                time.sleep(pause)
            try:
                pause = attempts.send(self._send(request))
            except StopIteration as done:
                result: T = done.value
                return result

    def _send(self, request: Request[Any]) -> Answer | TransportError:
        try:
            response = self._http.send(build_request(self._http, request), stream=True)
            try:
                receiver = BodyReceiver(response, request.progress)
                assert isinstance(response.stream, httpx.SyncByteStream)
                for chunk in response.stream:
                    receiver.write(chunk)
                return receiver.answer()
            finally:
                response.close()
        except httpx.HTTPError as error:
            return transport_error(error)
        except TransportError as error:
            return error


class AsyncGatherND:
    """`GatherND` for asyncio: the same arguments, and the same methods to await. For use within one event loop."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float | httpx.Timeout = 60.0,
        key: str | None = None,
        retries: int | Retries = 3,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = _as_retries(retries)
        self._http = httpx.AsyncClient(
            base_url=url, timeout=timeout, headers=_headers(key), limits=_LIMITS, transport=transport
        )

    async def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, dialect: str = "onnx-13", device: str = "auto"
    ) -> NDArray[Any]:
        """GatherND, see `GatherND.gathernd`."""
        return await self._run(_endpoints.gather("gathernd", data, indices, batch_dims, dialect, device))

    async def gather(
        self, data: Any, indices: Any, axis: int = 0, *, dialect: str = "onnx-13", device: str = "auto"
    ) -> NDArray[Any]:
        """Gather, see `GatherND.gather`."""
        return await self._run(_endpoints.gather("gather", data, indices, axis, dialect, device))

    async def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, dialect: str = "onnx-13", device: str = "auto"
    ) -> NDArray[Any]:
        """GatherElements, see `GatherND.gather_elements`."""
        return await self._run(_endpoints.gather("gather_elements", data, indices, axis, dialect, device))

    async def put(
        self,
        name: str,
        array: Any,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefault: bool = False,
        lock: bool = False,
        progress: Progress | None = None,
    ) -> TensorInfo:
        """Make `array` a resident tensor, see `GatherND.put`."""
        return await self._run(_endpoints.put(name, array, if_match, if_none_match, prefault, lock, progress))

    async def get(
        self,
        name: str,
        *,
        rows: tuple[int, int] | None = None,
        if_match: str | None = None,
        progress: Progress | None = None,
    ) -> NDArray[Any]:
        """A resident tensor or some of its rows, see `GatherND.get`."""
        return await self._run(_endpoints.get(name, rows, if_match, progress))

    async def metadata(self, name: str) -> TensorInfo:
        """What the service knows of a resident tensor, see `GatherND.metadata`."""
        return await self._run(_endpoints.metadata(name))

    async def tensors(self, *, page: int | None = None) -> AsyncIterator[TensorInfo]:
        """Every resident tensor by name, see `GatherND.tensors`; to be used with `async for`."""
        after = None
        while True:
            found = await self._run(_endpoints.tensors(after, page))
            for info in found.tensors:
                yield info
            after = found.next
            if after is None:
                return

    async def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Remove a resident tensor, see `GatherND.delete`."""
        await self._run(_endpoints.delete(name, if_match))

    async def scatter(
        self,
        name: str,
        indices: Any,
        updates: Any,
        reduction: Reduction = "none",
        *,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Change slices of a resident tensor, see `GatherND.scatter`."""
        return await self._run(_endpoints.scatter(name, indices, updates, reduction, if_match, idempotency_key))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, request: Request[T]) -> T:
        """Send the request, again where `sending` says so, and return what its answer holds."""
        attempts = sending(request, self._retries)
        pause = next(attempts)
        while True:
            if pause:
                await asyncio.sleep(pause)
            try:
                pause = attempts.send(await self._send(request))
            except StopIteration as done:
                result: T = done.value
                return result

    async def _send(self, request: Request[Any]) -> Answer | TransportError:
        try:
            response = await self._http.send(build_request(self._http, request), stream=True)
            try:
                receiver = BodyReceiver(response, request.progress)
                assert isinstance(response.stream, httpx.AsyncByteStream)
                async for chunk in response.stream:
                    receiver.write(chunk)
                return receiver.answer()
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            return transport_error(error)
        except TransportError as error:
            return error


# As many connections as there are calls at a time. 64 idle ones are kept for 5 s: the service closes them after 30 s,
# unless its settings say otherwise.
_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=5.0)


def _as_retries(given: int | Retries) -> Retries:
    return given if isinstance(given, Retries) else Retries(given)


def _headers(key: str | None) -> dict[str, str]:
    headers = {"user-agent": "gathernd-python", "accept-encoding": "identity"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers

"""The bodies of requests and answers as httpx streams: sent from the arrays' own memory, received into one buffer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import httpx
import numpy as np

from ._array_bytes import Buffer
from ._endpoints import Answer, Request
from .errors import UnexpectedAnswer

_CHUNK_BYTES: Final = 1 << 20
"""How much of a body is given to the socket at a time, after which `progress` is called."""
_MAX_BYTES_WITHOUT_LENGTH: Final = 1 << 30
"""Most bytes of an answer without a Content-Length, which the service always sends: a limit for memory."""


def build_request(http: httpx.Client | httpx.AsyncClient, request: Request[Any]) -> httpx.Request:
    """The httpx request that sends `request`."""
    headers = dict(request.headers)
    stream = None
    if request.body:
        size = sum(map(len, request.body))
        headers["content-length"] = str(size)
        stream = BodyStream(request.body, request.progress)
    made = http.build_request(request.method, request.path, params=request.query or None, headers=headers)
    if stream is not None:
        made.stream = stream
    return made


class BodyStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request body from buffers, in chunks that are views of them; it can be iterated, and so sent, again."""

    def __init__(self, buffers: Sequence[Buffer], progress: Callable[[int], None] | None) -> None:
        self._buffers = buffers
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        for buffer in self._buffers:
            view = memoryview(buffer)
            for offset in range(0, len(view), _CHUNK_BYTES):
                chunk = view[offset : offset + _CHUNK_BYTES]
                yield chunk  # type: ignore[misc]  # httpx sends whatever has a length and the buffer interface
                sent += len(chunk)
                if self._progress is not None:
                    self._progress(sent)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


class BodyReceiver:
    """Receives the body of an answer into a buffer of its Content-Length, so that memory holds it once."""

    def __init__(self, response: httpx.Response, progress: Callable[[int], None] | None) -> None:
        self._response = response
        self._progress = progress
        length = response.headers.get("content-length", "")
        self._sized = np.empty(int(length), np.uint8).data if length.isdigit() else None
        self._growing = bytearray()
        self._received = 0

    def write(self, chunk: bytes) -> None:
        """Add the next chunk. Raises UnexpectedAnswer for a body without a length that does not end."""
        end = self._received + len(chunk)
        if self._sized is None:
            self._growing += chunk
            if end > _MAX_BYTES_WITHOUT_LENGTH:
                raise UnexpectedAnswer(
                    "the answer has no announced length and does not end", self._response.status_code
                )
        else:
            self._sized[self._received : end] = chunk
        self._received = end
        if self._progress is not None and self._response.request.method == "GET":
            self._progress(end)

    def answer(self) -> Answer:
        """The answer, after its last chunk."""
        body = memoryview(self._growing) if self._sized is None else self._sized[: self._received]
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return Answer(self._response.status_code, headers, body)

"""A request and its answer, the interface between the endpoints and the transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ._array_bytes import Buffer, StreamedBytes
from .errors import GatherNDError

T_co = TypeVar("T_co", covariant=True)
Progress = Callable[[int], None]
Headers = Mapping[str, str]
ReceiveInto = Callable[[int, Headers], memoryview | None]
"""Called with an answer's status and headers. Returns a buffer of Content-Length bytes for the body, or None."""

CHUNK_BYTES: Final = 1 << 20
"""Maximum number of body bytes to send at a time; `progress` is called after each chunk."""
MAX_BYTES_WITHOUT_LENGTH: Final = 1 << 30
"""Maximum size of an answer without Content-Length, to limit memory. The service always sends Content-Length."""


@dataclass(slots=True, eq=False)
class Answer:
    """An answer of the service, with any status; header names are in lower case."""

    status: int
    headers: Headers
    body: memoryview


@dataclass(slots=True, eq=False)
class Request(Generic[T_co]):
    """A request, and the function that parses its answer.

    `retryable` means that the request is idempotent and may be sent again after the connection broke. `progress` is
    called with the number of bytes sent so far (with a body) or received so far (without). `note` is called with the
    error that ends the call, and returns a sentence to add to it, or None.
    """

    method: str
    path: str
    read: Callable[[Answer], T_co]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Headers = field(default_factory=dict)
    body: Sequence[Buffer | StreamedBytes] = ()
    retryable: bool = True
    progress: Progress | None = None
    receive_into: ReceiveInto | None = None
    note: Callable[[GatherNDError], str | None] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def body_chunks(body: Sequence[Buffer | StreamedBytes]) -> Iterator[memoryview]:
    """Yield a request's body in chunks of at most CHUNK_BYTES, as views of its buffers."""
    for part in body:
        for buffer in part if isinstance(part, StreamedBytes) else (part,):
            view = memoryview(buffer)
            for at in range(0, len(view), CHUNK_BYTES):
                yield view[at : at + CHUNK_BYTES]

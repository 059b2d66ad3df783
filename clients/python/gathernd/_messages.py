"""A request to the service and its answer, as the endpoints make and read them and as the transports carry them."""

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
"""Called with the status and header of an answer: the memory for its body, of its Content-Length, or None."""

CHUNK_BYTES: Final = 1 << 20
"""How much of a request's body is given to the network at a time, after which `progress` is called."""
MAX_BYTES_WITHOUT_LENGTH: Final = 1 << 30
"""Most bytes of an answer without a Content-Length, which the service always sends: a limit for memory."""


@dataclass(slots=True, eq=False)
class Answer:
    """An answer of the service, of any status; the names of its headers are in lower case."""

    status: int
    headers: Headers
    body: memoryview


@dataclass(slots=True, eq=False)
class Request(Generic[T_co]):
    """A request and the function that reads its answer.

    `retryable` says that sending it twice does what sending it once does, so that it may be sent again after the
    connection broke. `progress` is called with the bytes so far: sent, of a request with a body, else received.
    `note` is called with the error that ends the call: a sentence to add to it, or None.
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
    """The bytes of a request's body in pieces of at most CHUNK_BYTES, views of its buffers."""
    for part in body:
        for buffer in part if isinstance(part, StreamedBytes) else (part,):
            view = memoryview(buffer)
            for at in range(0, len(view), CHUNK_BYTES):
                yield view[at : at + CHUNK_BYTES]

"""A request in flight: a record that services, the thread pool, metrics, logs and traces share.

A request goes through four stages. `parse` reads the body. `queue` validates the request, chooses a route and waits for
a thread. `kernel` gathers, and `encode` writes the response's body. The Server-Timing header field reports how long
each stage took. For most small gathers, a single call of compiled code writes that field (`app.telemetry.increments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, Protocol

from app.errors import Code
from app.memory.budget import MemoryReservation
from app.telemetry.request_id import REQUEST_ID, numbered_id
from app.telemetry.trace_context import forwarded_header_lines

STAGES: Final = ("parse", "queue", "kernel", "encode")


class Caller(Protocol):
    """The client of a request.

    When the client disconnects, `disconnected` is set and `on_disconnect`, if any, is called.
    """

    disconnected: bool
    on_disconnect: Callable[[], None] | None


class ObservedExchange(Protocol):
    """The server's side of a request (see `app.server.http_exchange`).

    `received` and `sent` count the bytes of both bodies. If the server itself ended the request with an error,
    `refusal` is that error and `refusal_id` is the request id in the response.
    """

    received: int
    sent: int
    refusal: Code | None
    refusal_id: str


class ServedRequest:
    """A request in flight, or a part of one that runs on its own. HTTP and gRPC each have a subclass.

    Identity: `number` is the request's number within this process, `given_id` is the id that the caller sent, and
    `path` is the decoded path. `status` is the response's status, or 0 if the client disconnected first.
    `forwarded_lines` holds header lines to repeat in requests to other services on this request's behalf: its id and
    its trace, if the caller sent them. `span` is the request's span, if tracing had to create it before the request
    finished.

    Times are in seconds of `perf_counter`, and are 0.0 for stages that have not been reached. The request arrived at
    `start` and had been read by `parsed`; the kernel ran from `kernel` to `kernel_end`. `gathered` equals `kernel_end`
    once the whole gather has succeeded. `finished` is the time when the request was counted: for a small gather, when
    the header of its response was built; otherwise, when the whole response had been sent.

    Execution: `memory` holds the request's charges to the budget, and `caller` is its client. `admitted` says whether
    any work has already been done for the request. If the request has not run by `deadline`, it is refused;
    `callers_deadline` says whether the caller set that deadline. `route` is the route of the gather, and `parts` is the
    number of threads that it uses. `tensor` is the name of the resident tensor that it reads, or "".
    """

    method: str
    number: int
    path: str
    exchange: ObservedExchange
    """The server's side of the request."""
    headers: Mapping[bytes, bytes]
    """Its header fields or metadata, without fields that hold secrets."""
    callers_deadline = False
    admitted = False
    forwarded_lines = b""
    span: Any = None
    status = 0
    parsed = 0.0
    kernel = 0.0
    kernel_end = 0.0
    gathered = 0.0
    finished = 0.0
    route: str | None = None
    parts = 1

    def __init__(self, start: float, deadline: float, memory: MemoryReservation, caller: Caller | None = None) -> None:
        # Attributes that most requests do not use are class attributes.
        self.start = start
        self.deadline = deadline
        self.memory = memory
        self.caller = caller
        self.given_id: str | None = None
        self.tensor = ""

    @property
    def scope(self) -> Mapping[str, Any]:
        """Its ASGI scope."""
        raise NotImplementedError

    @property
    def sent_key(self) -> bytes | None:
        """The SHA-256 of the API key that was sent, or None."""
        raise NotImplementedError

    @property
    def request_id(self) -> str:
        """The request's id: the caller's if that is valid, otherwise a generated one."""
        return self.given_id or numbered_id(self.number)

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self.given_id = request_id

    def identify(self) -> None:
        """Read the caller's id and trace from the header fields, if there are any."""
        headers = self.headers
        given = headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.fullmatch(text := given.decode("latin-1")):
            self.given_id = text
        if given is not None or b"traceparent" in headers:
            self.forwarded_lines = forwarded_header_lines(headers, self.given_id)

    def wait_at_most(self, seconds: float) -> None:
        """Set the deadline to `seconds` after the start if that is earlier than the service's own deadline."""
        deadline = self.start + seconds
        if deadline < self.deadline:
            self.deadline = deadline
            self.callers_deadline = True

    def server_timing(self) -> bytes:
        """Return the Server-Timing value for a response that is sent now: each stage so far, in milliseconds."""
        end = perf_counter()
        start = self.start * 1e3
        if not self.parsed:
            return b"parse;dur=%.3f" % (end * 1e3 - start)
        parsed = self.parsed * 1e3
        if not self.kernel:
            return b"parse;dur=%.3f, queue;dur=%.3f" % (parsed - start, end * 1e3 - parsed)
        kernel, done = self.kernel * 1e3, (self.kernel_end or end) * 1e3
        text = b"parse;dur=%.3f, queue;dur=%.3f, kernel;dur=%.3f" % (parsed - start, kernel - parsed, done - kernel)
        if not self.gathered:
            return text
        return b"%b, encode;dur=%.3f" % (text, end * 1e3 - done)

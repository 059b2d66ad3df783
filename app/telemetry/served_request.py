"""A request being answered: one record of what services, thread pool, metrics, logs and traces know of it.

The stages of its times follow each other: `parse` reads the body, `queue` validates the request, chooses a route and
waits for a thread, `kernel` gathers, `encode` writes the answer's body. The header field Server-Timing says how long
each took; the answers of most small gathers get it from one call of compiled code (`app.telemetry.increments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, Protocol

from app.errors import Code
from app.memory.budget import MemoryReservation
from app.telemetry.request_id import REQUEST_ID, numbered_id
from app.telemetry.trace_context import handed_on

STAGES: Final = ("parse", "queue", "kernel", "encode")


class Caller(Protocol):
    """The client's side of a request: `disconnected` once it has gone; `on_disconnect`, if set, is called then."""

    disconnected: bool
    on_disconnect: Callable[[], None] | None


class ObservedExchange(Protocol):
    """The server's side of a request (see `app.server.http_exchange`).

    `received` and `sent` count the bytes of both bodies. `refusal` is the error with which the server ended the request
    by itself, if it did, under the request id `refusal_id`.
    """

    received: int
    sent: int
    refusal: Code | None
    refusal_id: str


class ServedRequest:
    """A request being answered, or a part of one that is carried out by itself. HTTP and gRPC have a kind each.

    Of its identity: `number` is its number among the requests of this process, `given_id` the id that the caller gave
    it, `path` is decoded, and `status` is that of its answer: 0 if the client went away before it. `handed_on` are the
    header lines that requests to other services for its sake repeat: its id and its trace, if the caller gave them.
    `span` is its span, if tracing has begun it before the request was over.

    Of its times, in seconds of `perf_counter`, 0.0 for those it has not reached: it arrived at `start`, was read by
    `parsed`; the kernel ran from `kernel` to `kernel_end`. `gathered` equals `kernel_end` from when the whole gather
    has succeeded. `finished` is when it was counted: when the header of a small gather's answer was made, for others
    when all had been sent.

    Of how it is carried out: `memory` is what it has charged to the budget, `caller` whose request it is, `admitted`
    says whether work was done for it before, `deadline` when it is refused if it has not run, `callers_deadline`
    whether the caller set that. `route` is the route that the gather takes, `parts` over how many threads; `tensor` is
    the name of the resident tensor that it reads, "" without one.
    """

    method: str
    number: int
    path: str
    exchange: ObservedExchange
    """The server's side of it."""
    headers: Mapping[bytes, bytes]
    """Its header fields or metadata, without those that hold secrets."""
    callers_deadline = False
    admitted = False
    handed_on = b""
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
        # What most requests neither change nor read is an attribute of the class.
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
        """The SHA-256 of the key that came with it; None without one."""
        raise NotImplementedError

    @property
    def request_id(self) -> str:
        """Its id: the caller's, if it gave a valid one."""
        return self.given_id or numbered_id(self.number)

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self.given_id = request_id

    def identify(self) -> None:
        """Take over the id and the trace that the caller gave it, if it gave them."""
        headers = self.headers
        given = headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.fullmatch(text := given.decode("latin-1")):
            self.given_id = text
        if given is not None or b"traceparent" in headers:
            self.handed_on = handed_on(headers, self.given_id)

    def wait_at_most(self, seconds: float) -> None:
        """The caller waits so long from the start, if that is shorter than the service's own deadline."""
        deadline = self.start + seconds
        if deadline < self.deadline:
            self.deadline = deadline
            self.callers_deadline = True

    def server_timing(self) -> bytes:
        """The value of Server-Timing for an answer that is sent now: each stage so far, in milliseconds."""
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

"""The times of one request: when it entered each stage, and the header field Server-Timing that says so.

The stages follow each other: `parse` reads the body, `queue` validates the request, chooses a route and waits for a
thread, `kernel` gathers, `encode` writes the answer's body. The answers of most small gathers get the same field from
one call of compiled code (`app.telemetry.increments`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Protocol

STAGES: Final = ("parse", "queue", "kernel", "encode")


class Caller(Protocol):
    """The client's side of a request: `disconnected` once it has gone; `on_disconnect`, if set, is called then."""

    disconnected: bool
    on_disconnect: Callable[[], None] | None


class RequestTimings:
    """When a request entered its stages, in seconds of `perf_counter`; 0.0 for those it has not reached.

    It arrived at `start`, was read by `parsed`; the kernel ran from `kernel` to `kernel_end`. `gathered` equals
    `kernel_end` from when the whole gather has succeeded. `finished` is when it was counted: when the header of a small
    gather's answer was made, for others when all had been sent.

    `route` is the route that the gather takes, `parts` over how many threads; `tensor` is the name of the resident
    tensor that it reads, "" without one. It is what the thread pool knows of the request, too: `caller` is whose
    request it is, `admitted` whether work was done for it before, `deadline` when it is refused if it has not run,
    `callers_deadline` whether the caller set that. `handed_on` are the header lines that requests to other services for
    its sake repeat: its id and its trace, where the caller gave them. `span` is its span, where tracing has begun it
    before the request was over.
    """

    __slots__ = (
        "admitted",
        "caller",
        "callers_deadline",
        "deadline",
        "finished",
        "gathered",
        "handed_on",
        "kernel",
        "kernel_end",
        "parsed",
        "parts",
        "route",
        "span",
        "start",
        "tensor",
    )

    def __init__(self, start: float, deadline: float, caller: Caller | None = None) -> None:
        self.start = start
        self.deadline = deadline
        self.callers_deadline = False
        self.handed_on = b""
        self.span: Any = None
        self.caller = caller
        self.admitted = False
        self.parsed = 0.0
        self.kernel = 0.0
        self.kernel_end = 0.0
        self.gathered = 0.0
        self.finished = 0.0
        self.route: str | None = None
        self.parts = 1
        self.tensor = ""

    def wait_at_most(self, seconds: float) -> None:
        """The caller waits so long from the start, if that is shorter than the service's own deadline."""
        deadline = self.start + seconds
        if deadline < self.deadline:
            self.deadline = deadline
            self.callers_deadline = True

    def header_field(self) -> bytes:
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

"""One request and its answer at the protocol's side: uvicorn's cycle, with shorter ways through it.

`respond` writes a whole answer at once, where ASGI needs two messages and two passes over the header fields; `collect`
hands body pieces on as they come off the socket, where ASGI wakes the application for each; `fill` has a large body
read straight into its place. An application finds them at `scope["extensions"]["gathernd"]` and uses plain ASGI
messages where that is absent, as under any other server.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
import types
from array import array
from collections.abc import Callable, Coroutine, Generator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.api.asgi_request import Buffer
from app.errors import Code

if TYPE_CHECKING:
    from app.server.http1_connection import Protocol


JOINED: Final = 1 << 13
"""Answers of up to this many bytes leave as one piece: to copy them costs less than to write several."""
_CLOSED: Final = 7  # states of a connection, in the kernel's numbers: it is broken,
_ENDED: Final = 8  # and the other side has sent its end
DIRECT: Final = 1 << 16
"""From as many bytes on that are still to come, a body is read straight into its place."""


class HttpExchange(RequestResponseCycle):
    """uvicorn's cycle; `defaults` are the header fields that every answer begins with, as bytes, and `added` those of
    them that the application has added.

    `received` and `sent` count the bytes of both bodies, and `refusal` says why the protocol answered by itself, under
    `refusal_id`.
    `counted` is how much of `received` the protocol had seen when it last looked for bytes that bring no body.
    `owner` is the protocol while it is at the body of this request. `route_match` is for the application: what it
    leaves there, it finds there when a request with the same header comes (see `request_header_cache`); `secret` is for
    it to say that the header held a key. `deadline` is when the body must be there, in `monotonic`'s seconds, 0.0 for
    whenever; `waiting` is called when the client goes while the request waits.
    """

    defaults: bytes = b""
    added: bytes = b""
    received: int = 0
    counted: int = 0
    sent: int = 0
    refusal: Code | None = None
    refusal_id: str = ""
    sink: Callable[[bytes | bytearray], None] | None = None
    failure: Exception | None = None
    owner: Protocol | None = None
    route_match: Any = None
    secret: bool = False
    access_log: bool = False
    chunked_encoding: bool | None = None
    deadline: float = 0.0
    disconnected: bool = False
    expected_content_length: int = 0
    more_body: bool = True
    response_complete: bool = False
    response_started: bool = False
    waiting: Callable[[], None] | None = None

    def __init__(self, protocol: Protocol, scope: dict[str, Any], *, keep_alive: bool, expect: bool) -> None:
        # Instead of uvicorn's: what starts the same for every request is the class's.
        self.scope = scope  # type: ignore[assignment]
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.access_logger = protocol.access_logger
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.message_event = asyncio.Event()
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expect
        self.body = bytearray()

    def add_fields(self, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Have the answer carry these header fields, whoever gives it."""
        self.added = b"".join(b"%b: %b\r\n" % field for field in fields)
        self.defaults += self.added
        self.default_headers = [*self.default_headers, *fields]

    def ready(self) -> bool:
        """Whether a whole answer can be written at once: not where the client must first read what it already has."""
        return not (self.flow.write_paused or self.disconnected or self.response_started)

    def respond(self, status: int, fields: bytes, pieces: Sequence[Buffer], size: int) -> None:
        """Write a whole answer, where the cycle is `ready`.

        `fields` are complete header lines, Content-Length among them, which is `size`, the bytes of all `pieces`; a
        request with the method HEAD is not for this.
        """
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.sent = size
        self.message_event.set()
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        head = STATUS_LINE[status], self.defaults, fields, end
        answer = (b"".join((*head, *pieces)),) if size <= JOINED else (b"".join(head), *pieces)
        post(self.transport, answer, size)
        if not self.keep_alive:
            deliver()
            self.transport.close()
        self.on_response()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Run the application. The scope leads to the cycle and back: that is cut at the end, so that all is freed."""
        try:
            await app(self.scope, self.receive, self.send)
            if not self.response_complete and not self.disconnected:
                if not self.response_started:
                    raise RuntimeError("the application returned without an answer")
                self.transport.close()  # an answer that cannot be finished must not look whole
        except BaseException as error:
            self.logger.error("exception in the application", exc_info=error)
            if not self.response_started:
                await self.send_500_response()
            else:
                self.transport.close()
        finally:
            self.on_response = _nothing
            self.scope.pop("extensions", None)

    async def send(self, message: ASGISendEvent) -> None:
        """The ASGI way."""
        deliver()
        if message["type"] == "http.response.body" and self.scope["method"] != "HEAD" and not self.disconnected:
            self.sent += len(message.get("body", b""))
        await super().send(message)

    def departed(self) -> bool:
        """Whether the client has gone and left its body incomplete; its connection is closed then.

        The system is asked, since a connection that is not read does not say so: its end has come, or it is broken,
        and what lies there to be read is not all that is missing.
        """
        if not self.disconnected and self._has_ended():
            self.disconnected = True
            self.transport.abort()
        return self.disconnected

    def _has_ended(self) -> bool:
        connection = self.transport.get_extra_info("socket")
        if connection is None or not self.more_body or not sys.platform.startswith("linux"):
            return False
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _CLOSED:
            return True
        length = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"")
        if state != _ENDED or not length.isdigit():
            return False
        unread = array("i", [0])
        fcntl.ioctl(connection.fileno(), termios.FIONREAD, unread)
        return self.received + unread[0] < int(length)

    def feed(self, piece: bytes | bytearray) -> bool:
        """A piece of the body arrives: whether a sink took it, or has already refused."""
        if self.sink is None:
            return False
        if self.failure is None:
            try:
                self.sink(piece)
            except Exception as failure:  # noqa: BLE001  (whoever collects raises it)
                self.failure = failure
                self.message_event.set()
        return True

    def whole_body(self) -> bytes | bytearray | None:
        """The body, if all of it is here and none was taken."""
        if self.more_body or self.disconnected or self.response_complete:
            return None
        body, self.body = self.body, bytearray()
        return body

    async def collect(self, sink: Callable[[bytes | bytearray], None]) -> bool:
        """Hand the body to `sink` piece by piece until it is complete; False when the client has gone before.

        Raises what `sink` raises; it is not called again then.
        """
        if self.waiting_for_100_continue and not self.transport.is_closing():
            deliver()
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        self.sink = sink
        if self.body:
            first, self.body = self.body, bytearray()
            self.feed(first)
        return await self._whole()

    async def fill(self, view: memoryview, taken: Callable[[int], None]) -> bool:
        """Read the rest of the body, which must have as many bytes as `view`, into it; False when the client has gone.

        `taken` is told of the bytes as they arrive; what it raises is raised here, and the rest is dropped.
        """
        place = 0

        def put(piece: bytes | bytearray) -> None:
            nonlocal place
            taken(len(piece))
            view[place : place + len(piece)] = piece
            place += len(piece)

        if self.body:
            first, self.body = self.body, bytearray()
            put(first)
        direct = self.more_body and not self.disconnected and len(view) - place >= DIRECT
        if direct and self.owner is not None:
            self.owner.read_into(self, view[place:], taken)
            self.owner = None
        else:
            self.sink = put
        return await self._whole()

    async def _whole(self) -> bool:
        """Wait for the end of the body; False when the client has gone before."""
        self.flow.resume_reading()
        while self.more_body and not self.disconnected and self.failure is None:
            self.message_event.clear()
            await self.message_event.wait()
        self.message_event.clear()
        # The sink leads to the body, and this cycle is kept by its connection until the next request.
        self.sink = _drop if self.more_body else None
        if self.failure is not None:
            # Its traceback leads here, and so to what was read: nothing may lead from here to it.
            failure, self.failure = self.failure, None
            try:
                raise failure
            finally:
                del failure
        return not self.disconnected

    async def receive(self) -> ASGIReceiveEvent:
        """The ASGI way; unlike uvicorn's it does not copy the piece once more."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            deliver()
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}  # type: ignore[typeddict-item]


def _nothing() -> None:
    """What the end of an answer leads to when it has been seen to."""


def _drop(piece: bytes | bytearray) -> None:
    """The sink of what nobody wants any more."""


HELD_S: Final = 1e-3
HELD_BYTES: Final = 1 << 20
"""Once the first of the answers of one turn has been held back for so many seconds, or so many bytes of answers are,
they are written with the next answer that is ready.
"""


class Outbox:
    """Answers that leave together once all requests that have arrived by now are carried out.

    A write wakes the client's process, which costs this one more than the answer of a small gather: so the answers of
    one turn of the event loop are written together, but those of a turn that takes long in several parts.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[asyncio.Transport, Sequence[Buffer]]] = []
        self._since = 0.0
        self._bytes = 0

    def post(self, transport: asyncio.Transport, answer: Sequence[Buffer], size: int) -> None:
        """Take an answer of `size` bytes beside its header."""
        answers = self._answers
        if not answers:
            asyncio.get_running_loop().call_soon(self.deliver)
            self._since = perf_counter()
            self._bytes = size
            answers.append((transport, answer))
            return
        answers.append((transport, answer))
        self._bytes += size
        if self._bytes > HELD_BYTES or perf_counter() - self._since > HELD_S:
            self.deliver()

    def deliver(self) -> None:
        """Write what there is; whoever writes to a transport directly calls this first, so that answers keep order."""
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        for transport, answer in answers:
            if not transport.is_closing():
                transport.writelines(answer)


_outbox: Final = Outbox()
post: Final = _outbox.post
deliver: Final = _outbox.deliver


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Carry on with a coroutine that was run up to its first wait, on `waiting`, outside of any task."""
    while True:
        try:
            value = yield waiting
        except BaseException as error:  # noqa: BLE001  (cancellation too belongs to the coroutine)
            try:
                waiting = coroutine.throw(error)
            except StopIteration:
                return
        else:
            try:
                waiting = coroutine.send(value)
            except StopIteration:
                return

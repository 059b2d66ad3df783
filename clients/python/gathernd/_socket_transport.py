"""HTTP/1.1 over blocking sockets: a pool of keep-alive connections for all threads, each with one request at a time."""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from . import _failures
from ._connection_settings import Address, ConnectionSettings
from ._http1_messages import AnswerParser, request_header
from ._messages import Answer, Request, body_chunks
from .errors import Disconnected, TransportError

MAX_IDLE: Final = 64
"""Maximum number of idle connections. The number in use is the number of concurrent calls."""
IDLE_SECONDS: Final = 5.0
"""Seconds that an idle connection is kept: much shorter than the keep-alive of the service (GATHERND_KEEP_ALIVE) and
of proxies.
"""
JOIN_BYTES: Final = 64 << 10
"""Requests of at most this size are sent with a single write."""
_NOT_WAITING: Final = getattr(socket, "MSG_DONTWAIT", 0)
_SCRATCH_BYTES: Final = 2048
"""Size of the receive buffer for an answer's header. Body bytes in the first read are copied; the rest are received
directly into the body's buffer.
"""


class SocketTransport:
    """Sends requests to the service of `settings`. Thread-safe, and safe in a forked child."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._fields = settings.fields()
        self._tls = settings.tls_context() if settings.address.tls else None
        self._idle: deque[_Connection] = deque()
        self._process = os.getpid()
        self._closed = False

    def send(self, request: Request[Any], until: float | None, headers: dict[str, str]) -> Answer:
        """Send `request` with additional `headers` and return its answer before `until` (in `monotonic()` time).

        Replaces an idle connection that the service has closed, if that is safe. Raises TransportError.
        """
        if self._closed:
            raise RuntimeError("this client is closed")
        header = request_header(request, self._settings.address.base_path, self._fields, headers)
        while True:
            connection = self._idle_connection()
            used = connection is not None
            if connection is None:
                connection = self._connect(request, until)
            try:
                answer = connection.exchange(request, header, until)
            except Disconnected:
                connection.close()
                # The service may have closed the idle connection just as the request was sent.
                if not (used and request.retryable and not connection.parser.begun):
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                self._keep_idle(connection)
                return answer

    def close(self) -> None:
        """Close the idle connections now, and the others when their answers have arrived."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _idle_connection(self) -> _Connection | None:
        """Return the most recently used idle connection that is still open, or None."""
        if self._process != os.getpid():  # a forked child must not use its parent's connections
            self._process = os.getpid()
            self._close_idle()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if monotonic() - connection.idle_since < IDLE_SECONDS and not connection.is_readable():
                return connection
            connection.close()

    def _keep_idle(self, connection: _Connection) -> None:
        if self._closed or not connection.parser.reusable or len(self._idle) >= MAX_IDLE:
            connection.close()
            return
        connection.idle_since = now = monotonic()
        self._idle.append(connection)
        if len(self._idle) > 1:
            with suppress(IndexError):  # another thread may take the connection first
                if now - self._idle[0].idle_since > IDLE_SECONDS:
                    self._idle.popleft().close()

    def _connect(self, request: Request[Any], until: float | None) -> _Connection:
        address, limit, begun = self._settings.address, self._settings.timeouts.connect, monotonic()
        seconds: float | None = 0.0
        try:
            seconds = limit if until is None else _time_left(limit, until)
            made = connect(address, seconds)
            try:
                if self._tls is not None:
                    made.settimeout(None if seconds is None else _time_left(None, begun + seconds))
                    made = self._tls.wrap_socket(made, server_hostname=address.host, suppress_ragged_eofs=False)
            except BaseException:
                made.close()
                raise
        except TimeoutError:
            if until is not None and monotonic() >= until:
                raise _failures.not_answered_in_time(address.url, request, seconds, "answered") from None
            raise _failures.not_connected_in_time(address.url, seconds) from None
        except (OSError, UnicodeError) as error:
            raise _failures.not_connected(address.url, error) from error
        return _Connection(made, self._settings)


class _Connection:
    """A connection and its answer parser."""

    def __init__(self, made: socket.socket, settings: ConnectionSettings) -> None:
        self._socket = made
        self._settings = settings
        self._timeout = made.gettimeout()
        self.is_readable = readable_check(made.fileno())
        self.parser = AnswerParser(_SCRATCH_BYTES)
        self.idle_since = 0.0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def exchange(self, request: Request[Any], header: bytes, until: float | None) -> Answer:
        """Send a request and receive its answer. Raises Timeout, Disconnected and UnexpectedAnswer."""
        begun = monotonic()
        url = self._settings.address.url
        parser = self.parser
        parser.start(request)
        broken: OSError | None = None
        complete = False
        try:
            try:
                complete = self._send(request, header, until)
            except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
                broken = error  # the service may have answered before it closed the connection
            limit = self._settings.timeouts.read
            while True:
                self._set_timeout(limit, until)
                count = self._socket.recv_into(parser.buffer())
                if not count:
                    raise _failures.disconnected(url, request, monotonic() - begun, broken or "closed by the service")
                if parser.received(count):
                    break
        except TimeoutError:
            waited = monotonic() - begun
            raise _failures.not_answered_in_time(url, request, waited, "answered") from None
        except TransportError:
            raise
        except OSError as error:
            raise _failures.disconnected(url, request, monotonic() - begun, broken or error) from error
        parser.reusable = parser.reusable and complete
        assert parser.answer is not None
        return parser.answer

    def _send(self, request: Request[Any], header: bytes, until: float | None) -> bool:
        """Send a request. Returns False if an answer arrived early and the rest was not sent."""
        limit = self._settings.timeouts.write
        self._set_timeout(limit, until)
        if request.progress is None and sum(map(len, request.body)) <= JOIN_BYTES:
            self._socket.sendall(b"".join((header, *body_chunks(request.body))))
            return True
        self._socket.sendall(header)
        sent = 0
        # With TLS, readable bytes are not necessarily an answer.
        may_send = None if isinstance(self._socket, ssl.SSLSocket) else sending_check(self._socket.fileno())
        for chunk in body_chunks(request.body):
            self._set_timeout(limit, until)
            if may_send is None:
                self._socket.sendall(chunk)
            elif not self._send_while(may_send, chunk):
                return False
            sent += len(chunk)
            if request.progress is not None and request.method != "GET":
                request.progress(sent)
        return True

    def _send_while(self, may_send: Callable[[float | None], bool], piece: memoryview) -> bool:
        """Send a piece of a body. Returns False if an answer arrives before its end."""
        while piece:
            if not may_send(self._timeout):
                return False
            piece = piece[self._socket.send(piece, _NOT_WAITING) :]
        return True

    def _set_timeout(self, seconds: float | None, until: float | None) -> None:
        """Set the timeout of the next step to `seconds`, or less to end before `until`. May raise TimeoutError."""
        if until is not None:
            seconds = _time_left(seconds, until)
        if seconds != self._timeout:
            self._socket.settimeout(seconds)
            self._timeout = seconds


def connect(address: Address, seconds: float | None) -> socket.socket:
    """Connect to the service within `seconds`, without TLS. Raises OSError.

    If a host has several addresses, each gets an equal share of the remaining time, so that an address that does not
    respond leaves time for the next ones.
    """
    if address.socket_path:
        return _connected(socket.AF_UNIX, address.socket_path, seconds)
    end = None if seconds is None else monotonic() + seconds
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for number, (family, _, _, _, where) in enumerate(found):
        share = None if end is None else _time_left(None, end) / (len(found) - number)
        try:
            made = _connected(family, where, share)
        except OSError:
            if number == len(found) - 1:
                raise
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
    raise OSError(f"{address.host} has no address")


def _connected(family: int, where: Any, seconds: float | None) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        made.connect(where)
    except BaseException:
        made.close()
        raise
    return made


def readable_check(file: int) -> Callable[[], bool]:
    """Return a function that returns whether the socket `file` is readable or was closed by the other side."""
    if not hasattr(select, "poll"):
        return lambda: bool(select.select([file], [], [], 0)[0])
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return lambda: bool(poll.poll(0))


def sending_check(file: int) -> Callable[[float | None], bool]:
    """Return a function that waits up to the given seconds until the socket `file` is writable.

    The function returns False if the socket is readable, and raises TimeoutError.
    """
    if not hasattr(select, "poll"):

        def wait(seconds: float | None) -> tuple[bool, bool]:
            readable, writable, _ = select.select([file], [file], [], seconds)
            return bool(readable), bool(writable)

    else:
        poll = select.poll()
        poll.register(file, select.POLLIN | select.POLLOUT)

        def wait(seconds: float | None) -> tuple[bool, bool]:
            events = sum(event for _, event in poll.poll(None if seconds is None else seconds * 1000))
            return bool(events & ~select.POLLOUT), bool(events)

    def may_send(seconds: float | None) -> bool:
        readable, ready = wait(seconds)
        if not readable and not ready:
            raise TimeoutError
        return not readable

    return may_send


def _time_left(seconds: float | None, until: float) -> float:
    """Return `seconds`, or the time left until `until` if that is less. Raises TimeoutError if none is left."""
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError
    return left if seconds is None else min(seconds, left)

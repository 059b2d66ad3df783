"""HTTP/2 by hand, for what no client sends: frames, and a connection that keeps to the server's windows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack_from
from threading import Condition, Thread
from time import monotonic

INFER = "/inference.GRPCInferenceService/ModelInfer"
CHECK = "/grpc.health.v1.Health/Check"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
FIRST_WINDOW, LARGEST_WINDOW = (1 << 16) - 1, (1 << 31) - 1
INITIAL_WINDOW_SIZE = 4
CHUNK = 16_000


def literal(name: str, value: str) -> bytes:
    """A header field as HPACK writes it without tables."""
    return b"".join((b"\0", bytes([len(name)]), name.encode(), bytes([len(value)]), value.encode()))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return pack(">I", len(payload))[1:] + bytes([kind, flags]) + pack(">I", stream) + payload


def header(path: str = INFER, *more: tuple[str, str]) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
    return b"".join(literal(*field) for field in (*fields, ("content-type", "application/grpc"), *more))


def framed(message: bytes, flag: int = 0) -> bytes:
    """A message of gRPC behind its length."""
    return bytes([flag]) + pack(">I", len(message)) + message


def data(stream: int, content: bytes, end: bool = True) -> list[bytes]:
    chunks = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)] or [b""]
    return [frame(DATA, int(end and number == len(chunks) - 1), stream, chunk) for number, chunk in enumerate(chunks)]


def conversation(message: bytes, *more: tuple[str, str], flag: int = 0) -> list[bytes]:
    """What a client sends for one call."""
    return [
        PREFACE, frame(SETTINGS, 0, 0), frame(HEADERS, END_HEADERS, 1, header(INFER, *more)),
        *data(1, framed(message, flag)),
    ]  # fmt: skip


class Http2:
    """A connection that answers pings and settings, and counts the windows that the server gives.

    It is to a port, or to a Unix socket. `window` is what the server may send on each stream: 0 for a caller that takes
    no answer. One that is not `reading` leaves everything in the connection.
    """

    def __init__(self, place: int | Path, window: int = FIRST_WINDOW, *, reading: bool = True) -> None:
        if isinstance(place, Path):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(10)
            self.socket.connect(str(place))
        else:
            self.socket = socket.create_connection(("127.0.0.1", place), 10)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.windows: dict[int, int] = {0: FIRST_WINDOW}
        self._first_window = FIRST_WINDOW
        self._change = Condition()
        own = pack(">HI", INITIAL_WINDOW_SIZE, window)
        opened = frame(WINDOW, 0, 0, pack(">I", LARGEST_WINDOW - FIRST_WINDOW))
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, own) + opened)
        self._reader = Thread(target=self._read, daemon=True)
        if reading:
            self._reader.start()

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        if self._reader.ident is not None:
            self._reader.join(10)

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def open(self, stream: int, path: str = INFER, *more: tuple[str, str]) -> None:
        """Begin a call."""
        with self._change:
            self.windows[stream] = self._first_window
        self.send(frame(HEADERS, END_HEADERS, stream, header(path, *more)))

    def push(self, stream: int, content: bytes, wait: float = 0.0, *, end: bool = False) -> bool:
        """Send bytes of a call's message; False where the windows do not open for them in time."""
        until = monotonic() + wait
        with self._change:
            while min(self.windows[0], self.windows.get(stream, 0)) < len(content):
                if self.closed or not self._change.wait(max(until - monotonic(), 0)):
                    return False
            self.windows[0] -= len(content)
            self.windows[stream] -= len(content)
        self.send(frame(DATA, int(end), stream, content))
        return True

    def wait_closed(self, seconds: float) -> bool:
        """Whether the server closes the connection in time."""
        with self._change:
            return self._change.wait_for(lambda: self.closed, seconds)

    def _read(self) -> None:
        with suppress(OSError):
            for kind, flags, stream, payload in self._frames():
                if kind == SETTINGS and not flags & ACK:
                    self.send(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK:
                    self.send(frame(PING, ACK, 0, payload))
                with self._change:
                    self._count(kind, flags, stream, payload)
                    self._change.notify_all()
        with self._change:
            self.closed = True
            self._change.notify_all()

    def _count(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW:
            self.windows[stream] = self.windows.get(stream, 0) + unpack_from(">I", payload)[0]
        elif kind == RESET:
            self.windows.pop(stream, None)
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = unpack_from(">HI", payload, at)
                if name == INITIAL_WINDOW_SIZE:
                    for one in self.windows:
                        self.windows[one] += value - self._first_window if one else 0
                    self._first_window = value

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        kept = b""
        while part := self._receive():
            kept += part
            while len(kept) >= 9 and len(kept) >= (end := 9 + int.from_bytes(kept[:3])):
                yield kept[3], kept[4], int.from_bytes(kept[5:9]), kept[9:end]
                kept = kept[end:]

    def _receive(self) -> bytes:
        """What comes next, however long the server says nothing."""
        while True:
            with suppress(TimeoutError):
                return self.socket.recv(1 << 16)

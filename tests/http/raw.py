"""HTTP by hand, for what a well-behaved client cannot send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from socket import socket
from typing import Any

from tests.http.server import Server, check_problem

TINY = b'{"data":{"dtype":"int8","shape":[2],"values":[7,8]},"indices":{"dtype":"int64","shape":[1,1],"values":[1]}}'


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def worker(self) -> str:
        """The process that has answered: every one draws the first part of its request ids for itself."""
        return self.headers["x-request-id"].rpartition("-")[0]

    @property
    def last(self) -> bool:
        """Whether the server closes the connection after it."""
        return self.headers.get("connection") == "close"


def request(body: bytes = TINY, *fields: str, line: str = "POST /gathernd HTTP/1.1", length: bool = True) -> bytes:
    """The bytes of a request with a Host field, a Content-Length unless told otherwise, and `fields`."""
    lines = [line, "Host: localhost", *([f"Content-Length: {len(body)}"] if length else []), *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class Wire:
    """A connection that sends bytes and reads answers."""

    def __init__(self, server: Server | socket, timeout: float = 20) -> None:
        self.socket = server if isinstance(server, socket) else server.connect(timeout)
        self._buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def read(self, head: bool = False) -> Answer:
        """The next answer, checked as all answers are; `head` where its request was HEAD."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        start, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status_line, *lines = start.decode("latin-1").split("\r\n")
        version, status, *_ = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        fields = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in fields}
        assert len(headers) == len(fields), lines
        code = int(status)
        if code == 100:
            return Answer(code, headers, b"")
        size = 0 if head or code in (204, 304) else int(headers["content-length"])
        while len(self._buffer) < size:
            self._more()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        assert "server" not in headers
        assert headers["server-timing"].startswith("parse;dur=")
        assert headers["x-content-type-options"] == "nosniff"
        if code >= 400 and headers["content-type"] != "application/json":  # which only the inference protocol has
            check_problem(code, headers, None if head else json.loads(body), headers["x-request-id"])
        return Answer(code, headers, body)

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the connection ended after {len(self._buffer)} bytes: {self._buffer[:1000]!r}")
        self._buffer += data

    def closed(self) -> bool:
        """Whether the server closes within the connection's timeout, and sends nothing more before it does."""
        try:
            return not self._buffer and not self.socket.recv(1)
        except ConnectionResetError:
            return True


def ask(server: Server, data: bytes) -> Answer:
    """Send `data` on a connection of its own and read one answer."""
    with Wire(server) as wire:
        wire.send(data)
        return wire.read()

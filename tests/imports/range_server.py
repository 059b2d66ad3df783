"""A server of files by ranges, on a free port of the loopback address, which cuts connections as it is told to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from threading import Lock, Thread
from typing import Any, Protocol

_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]+)")
_STEP = 1 << 18


class Content(Protocol):
    """What a file holds: bytes or a memoryview."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Any: ...


class RangeServer:
    """`files` are served by their paths. After each `cut_every` bytes of all answers together a connection is cut.

    `respond`, if set, sees each request first and may answer it itself. `asked` are the requests: path, Range, Host.
    """

    def __init__(self) -> None:
        self.files: dict[str, Content] = {}
        self.fields: dict[str, str] = {}
        self.cut_every: int | None = None
        self.cuts = 0
        self.sent = 0
        self.etag = True
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.headers: list[dict[str, str]] = []
        self.respond: Callable[[Handler], bool] = lambda handler: False
        self.lock = Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def room(self, wanted: int) -> int:
        """How many of `wanted` bytes may go before the next cut."""
        with self.lock:
            if self.cut_every is not None:
                wanted = min(wanted, self.cut_every * (self.cuts + 1) - self.sent)
                if wanted <= 0:
                    self.cuts += 1
                    return 0
            self.sent += wanted
            return wanted


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def answer(self, status: int, body: bytes = b"", **fields: str) -> bool:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return True

    def answer_whole(self, content: bytes, *, chunked: bool = False, cut_after: int | None = None) -> bool:
        """Answer as a server does that knows no ranges; `cut_after` so many bytes the connection is closed."""
        self.send_response(200)
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(content)))))
        self.end_headers()
        for begin in range(0, len(content), _STEP):
            piece = content[begin : begin + _STEP]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if cut_after is not None and begin + _STEP >= cut_after:
                self.close_connection = True
                return True
        if chunked:
            self.wfile.write(b"0\r\n\r\n")
        return True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        own: RangeServer = self.server.own
        own.asked.append((self.path, self.headers["Range"], self.headers["Host"]))
        own.headers.append({name.lower(): value for name, value in self.headers.items()})
        if own.respond(self):
            return
        content = own.files.get(self.path.partition("?")[0])
        if content is None:
            self.answer(404)
            return
        match = _RANGE.fullmatch(self.headers["Range"] or "")
        begin, end = (int(match[1]), min(int(match[2]) + 1, len(content))) if match else (0, len(content))
        etag = self.etag_of(content)
        if match and begin >= len(content):
            self.answer(416, Content_Range=f"bytes */{len(content)}")
            return
        if match and self.headers["If-Range"] not in (None, etag):
            match, begin, end = None, 0, len(content)
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        if own.etag:
            self.send_header("ETag", etag)
        for name, value in own.fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        while begin < end:
            room = own.room(min(_STEP, end - begin))
            if room == 0:
                self.close_connection = True
                return
            self.wfile.write(content[begin : begin + room])
            begin += room

    def etag_of(self, content: Content) -> str:
        return f'"{hashlib.md5(bytes(content[:4096])).hexdigest()}-{len(content)}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away in the middle


@contextmanager
def range_server(tls: SSLContext | None = None) -> Iterator[RangeServer]:
    """A server that is stopped at the end; it speaks HTTPS with `tls`."""
    own = RangeServer()
    with _Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.own = own  # type: ignore[attr-defined]
        own.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield own
        finally:
            server.shutdown()
            thread.join()

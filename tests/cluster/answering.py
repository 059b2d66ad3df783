"""Services that tests make up: each answers HTTP by a handler of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Handler(BaseHTTPRequestHandler):
    """Answers each request by `respond`."""

    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        """Read the body, and answer."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.respond()

    do_POST = do_PUT = do_GET  # noqa: N815

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"] or 0))

    def answer(self, status: int, body: bytes, **fields: str) -> None:
        """Answer, with fields of the header whose names have "_" in place of "-"."""
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def answering(handler: type[Handler]) -> Iterator[str]:
    """The address, HOST:PORT, at which the handler answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()

"""A reverse proxy that serves a service below a prefix, which it takes off, as those in front of services do."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PREFIX = "/tools/gathernd"
_OWN = {"date", "server", "connection", "content-length"}


@contextmanager
def prefix_proxy(port: int) -> Iterator[int]:
    """The port of a proxy of the service on 127.0.0.1:`port`; paths outside of the prefix are 404."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, content = 404, [], b""
            if self.path.startswith(f"{PREFIX}/"):
                service = http.client.HTTPConnection("127.0.0.1", port)
                service.request(self.command, self.path.removeprefix(PREFIX), body, dict(self.headers))
                found = service.getresponse()
                status, headers, content = found.status, found.getheaders(), found.read()
                service.close()
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy.server_port
        proxy.shutdown()

"""The server's part of the service's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.server.refusal_response import ErrorRenderer
from app.server.timeouts import Timeouts
from app.server.tls import TlsFiles


@dataclass(frozen=True)
class ServerOptions:
    """Times are in seconds; `kept_memory` is how many bytes of freed memory the process may keep for later requests.
    `always_answered` are the paths that are answered beyond `max_connections`, and `render_error` makes the answers of
    requests that the server itself refuses. `uds` is the path of its Unix socket, `page_path` and `docs_path` are
    those of the pages that the log names.
    """

    host: str
    port: int
    uds: Path | None
    workers: int
    tls: TlsFiles | None
    timeouts: Timeouts
    max_connections: int
    always_answered: frozenset[bytes]
    drain_delay: float
    drain_timeout: float
    kept_memory: int
    log_level: str
    log_format: str
    render_error: ErrorRenderer
    page_path: str
    docs_path: str

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "http" if self.tls is None else "https"

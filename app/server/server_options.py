"""What the server needs to know: the settings, and a few things of the application."""

from __future__ import annotations

from dataclasses import dataclass

from app.server.refusal_response import ErrorRenderer
from app.server.tls import TlsFiles
from app.settings import Settings


@dataclass(frozen=True)
class ServerOptions:
    """The settings. `always_answered` are the paths that are answered beyond GATHERND_MAX_CONNECTIONS, `render_error`
    makes the answers of requests that the server itself refuses, and `page_path` and `docs_path` are those of the pages
    that the log names.
    """

    settings: Settings
    always_answered: frozenset[bytes]
    render_error: ErrorRenderer
    page_path: str
    docs_path: str

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, None for a service without."""
        settings = self.settings
        if settings.tls_cert is None:
            return None
        return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_key_password_file, settings.tls_client_ca)

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "http" if self.settings.tls_cert is None else "https"

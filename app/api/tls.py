"""TLS: the context that connections are accepted with, and certificates that are renewed while the service runs.

Every new handshake uses what the files said last. A pair that does not fit, as it may for a moment while somebody
replaces one file after the other, leaves the last good one in force.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

logger = logging.getLogger("gathernd")

SHUTDOWN_S: Final = 2.0
"""How long a peer may take to answer the end of a connection."""
_ALPN: Final = ("http/1.1",)
Signature = tuple[tuple[int, int, int] | None, ...]


class BadTls(Exception):
    """The certificate, the key or the authorities cannot be used; says which and why, and never what is in them."""


class Tls:
    """What the service shows to its callers and, with `client_ca`, asks of them: a certificate from those authorities.

    `key` may stand in the file of the certificate. TLS 1.2 and later. Raises BadTls.
    """

    def __init__(self, certificate: Path, key: Path | None, password_file: Path | None, client_ca: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._password_file = password_file
        self._problem = ""
        self._signature = self._stat()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(_ALPN)
        self._load(self.context)
        if client_ca is not None:
            try:
                self.context.load_verify_locations(client_ca)
            except OSError as error:
                raise BadTls(
                    f"the authorities of clients in {client_ca.name} cannot be read: {_reason(error)}"
                ) from None
            self.context.verify_mode = ssl.CERT_REQUIRED

    def renew(self) -> bool:
        """Read certificate and key again if their files have changed; whether others are in force now."""
        signature = self._stat()
        if signature == self._signature:
            return False
        self._signature = signature
        try:
            # Half a pair must not reach the context in use.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except BadTls as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("TLS: %s; the certificate read before stays in force", error)
            return False
        self._problem = ""
        logger.info("TLS: a new certificate is in force")
        return True

    async def watch(self, interval: float = 1.0) -> None:
        """Look for a renewed certificate. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.renew()

    def _load(self, context: ssl.SSLContext) -> None:
        password = self._password()
        try:
            # A function, or OpenSSL would ask the terminal for the password of a key that has one.
            context.load_cert_chain(self._certificate, self._key, lambda: password)
        except FileNotFoundError:
            missing = next((path for path in (self._certificate, self._key) if path and not path.exists()), None)
            raise BadTls(f"there is no file {missing and missing.name}") from None
        except (OSError, ValueError) as error:
            files = " and ".join(path.name for path in (self._certificate, self._key) if path)
            raise BadTls(f"certificate and key in {files} cannot be used: {_reason(error)}") from None

    def _password(self) -> str:
        if self._password_file is None:
            return ""
        try:
            return self._password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadTls(f"the key's password in {self._password_file.name} cannot be read: {_reason(error)}") from None

    def _stat(self) -> Signature:
        return tuple(_stat(path) for path in (self._certificate, self._key, self._password_file) if path is not None)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not what OpenSSL reads").lower().replace("_", " ")
    return error.strerror or "not readable" if isinstance(error, OSError) else "not text"

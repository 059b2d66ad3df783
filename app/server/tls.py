"""TLS: the context for accepting connections, and files that are renewed while the service runs.

Every new handshake uses the files as last read. If files cannot be used (a certificate and key that do not match while
one is replaced after the other), the last good ones stay in use.

A renewed pair gets a new context. OpenSSL keeps a pair for each kind of key, RSA and elliptic curves: in the old
context, a pair of the other kind would stay next to the new one, for clients that prefer it.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from app.security.file_watcher import Contents, FileWatcher, LastGood, read_small_file
from app.security.pem_files import memory_file, openssl_reason, trust
from app.server.certificate_expiry import expiry

logger = logging.getLogger("gathernd")

SHUTDOWN_S: Final = 2.0
"""Seconds a peer may take to answer the end of a connection."""
WRITE_BYTES: Final = 1 << 20
"""Bytes of one write of an answer: a write is encrypted whole, twice over, before its first byte is sent."""
_ALPN: Final = ("http/1.1",)


class BadTls(Exception):
    """The certificate, the key or the authorities cannot be used; says which and why, and never their content."""


class TlsFiles(NamedTuple):
    """The files of `Tls`, as PEM."""

    certificate: Path
    key: Path | None
    password_file: Path | None
    client_ca: Path | None


class Pem(NamedTuple):
    """The current contents, as PEM: the key without a password, the certificate with its chain, clients'
    authorities.
    """

    key: bytes
    certificate: bytes
    client_ca: bytes | None


class Loaded(NamedTuple):
    """The contents of the files, their context, and the earliest expiry of the certificates."""

    contents: Contents
    context: ssl.SSLContext
    expiry: float


class Tls:
    """The TLS context of the service: its certificate and, with `client_ca`, the authorities of clients' certificates.

    The key may be in the file of the certificate. TLS 1.2 and later. `context` is for the next connection: renewed
    files make a new one. Raises BadTls.

    A worker that starts while the files cannot be used takes those that its parent has read before, of `last_good`.
    """

    def __init__(self, files: TlsFiles, last_good: LastGood | None = None) -> None:
        self._files = files
        self.watcher = FileWatcher(self._read, self._load, BadTls, "TLS", "keeping the previous files")
        self._in_force = self.watcher.first(last_good)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the current certificate."""
        return self._in_force.context

    @property
    def expiry(self) -> float:
        """When the current certificate, or one of its chain, expires, in seconds since 1970."""
        return self._in_force.expiry

    def pem(self) -> Pem:
        """The current files, for a server with its own TLS. Raises BadTls for a key with a password."""
        if self._files.password_file is not None:
            raise BadTls("gRPC takes no key with a password: leave out GATHERND_TLS_KEY_PASSWORD_FILE or gRPC")
        files, contents = self._files, self._in_force.contents
        authorities = None if files.client_ca is None else contents[files.client_ca]
        return Pem(contents[files.key or files.certificate], contents[files.certificate], authorities)

    async def watch(self, interval: float = 1.0) -> None:
        """Reload renewed files within a second. Runs until it is cancelled."""
        await self.watcher.watch(self.take, interval)

    def take(self, found: Loaded) -> None:
        """Use these files from now on."""
        self._in_force = found
        logger.info("TLS: the renewed files are in force")

    def _read(self) -> Contents:
        """The contents of the files. Raises BadTls if one cannot be read."""
        found = {}
        for path in self._files:
            if path is not None:
                try:
                    found[path] = read_small_file(path)
                except FileNotFoundError:
                    raise BadTls(f"there is no file {path.name}") from None
                except OSError as error:
                    raise BadTls(f"{path.name} cannot be read: {_reason(error)}") from None
        return found

    def _load(self, found: Contents) -> Loaded:
        """A context of these files. Raises BadTls."""
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_ALPN)
        if files.client_ca is not None:
            try:
                trust(context, found[files.client_ca])
            except OSError as error:
                raise BadTls(
                    f"the authorities of clients in {files.client_ca.name} cannot be used: {_reason(error)}"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        password = found[files.password_file].rstrip(b"\r\n") if files.password_file is not None else b""
        try:
            with ExitStack() as opened:
                # OpenSSL reads pairs from files only, and these may change between two reads.
                paths = [
                    opened.enter_context(memory_file(found[path])) for path in (files.certificate, files.key) if path
                ]
                # A function, because otherwise OpenSSL asks the terminal for the password of a key that has one.
                context.load_cert_chain(paths[0], paths[1] if len(paths) > 1 else None, lambda: password)
        except (OSError, ValueError) as error:
            names = " and ".join(path.name for path in (files.certificate, files.key) if path)
            raise BadTls(f"certificate and key in {names} cannot be used: {_reason(error)}") from None
        return Loaded(found, context, expiry(found[files.certificate]))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return openssl_reason(error)
    return error.strerror or "not readable" if isinstance(error, OSError) else str(error)

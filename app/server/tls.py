"""TLS: the context for accepting connections, and the reloading of files that are renewed while the service is running.

Every new handshake uses the files as last read. If they cannot be used, the last good ones stay in use. For example,
the certificate and the key do not match while one of them is being replaced.

A renewed pair of certificate and key gets a new context. A context can hold one pair for each kind of key (RSA and
elliptic curves). If a renewal changed the kind of key, the old pair would stay in the old context, and clients that
prefer it would get it.

Python's ssl module returns the expiry only for a peer's certificate, so `expiry` parses the DER. A certificate begins
(RFC 5280, 4.1) with

    SEQUENCE { SEQUENCE { [0] version, INTEGER serial, SEQUENCE signature, SEQUENCE issuer,
                          SEQUENCE { notBefore, notAfter }, ...

where `[0] version` is optional. A time is either UTCTime, with a two-digit year, or GeneralizedTime, with four digits.
"""

from __future__ import annotations

import logging
import re
import ssl
from base64 import b64decode
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from app.security.file_watcher import Contents, FileWatcher, LastGood, read_small_file
from app.security.pem_files import memory_file, openssl_reason, trust

logger = logging.getLogger("gathernd")

SHUTDOWN_S: Final = 2.0
"""Seconds that a peer may take to confirm the end of a connection."""
WRITE_BYTES: Final = 1 << 20
"""Bytes per write of a response.

Each write is encrypted as a whole before its first byte is sent, which takes memory of twice its size.
"""
_ALPN: Final = ("http/1.1",)


class BadTls(Exception):
    """The certificate, key or authorities cannot be used.

    The message says which one and why, but never includes its content.
    """


class TlsFiles(NamedTuple):
    """The paths of the TLS files, in PEM format."""

    certificate: Path
    key: Path | None
    password_file: Path | None
    client_ca: Path | None


class Pem(NamedTuple):
    """The current data in PEM format: the key without a password, the certificate with its chain, and the clients'
    authorities.
    """

    key: bytes
    certificate: bytes
    client_ca: bytes | None


class Loaded(NamedTuple):
    """The contents of the files, the context built from them, and the earliest expiry of the certificates."""

    contents: Contents
    context: ssl.SSLContext
    expiry: float


class Tls:
    """The TLS context of the service: its certificate and, with `client_ca`, the authorities of clients' certificates.

    The key may be in the certificate's file. Supports TLS 1.2 and later. `context` is for the next connection; renewed
    files replace it. Raises BadTls.

    If the files cannot be used when a worker starts, the worker uses the contents in `last_good`, which its parent read
    earlier.
    """

    def __init__(self, files: TlsFiles, last_good: LastGood | None = None) -> None:
        self._files = files
        self.watcher = FileWatcher(self._read, self._load, BadTls, "TLS", "keeping the previous files")
        self._in_force = self.watcher.read_first(last_good)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the current certificate."""
        return self._in_force.context

    @property
    def expiry(self) -> float:
        """The earliest expiry of the current certificate and its chain, in seconds since 1970."""
        return self._in_force.expiry

    def pem(self) -> Pem:
        """Return the current contents for a server with its own TLS. Raises BadTls for a key with a password."""
        if self._files.password_file is not None:
            raise BadTls("gRPC takes no key with a password: leave out GATHERND_TLS_KEY_PASSWORD_FILE or gRPC")
        files, contents = self._files, self._in_force.contents
        authorities = None if files.client_ca is None else contents[files.client_ca]
        return Pem(contents[files.key or files.certificate], contents[files.certificate], authorities)

    async def watch(self, interval: float = 1.0) -> None:
        """Watch the files and reload them when they are renewed, checking every `interval` seconds.

        Runs until canceled.
        """
        await self.watcher.watch(self.take, interval)

    def take(self, found: Loaded) -> None:
        """Switch to renewed files."""
        self._in_force = found
        logger.info("TLS: the renewed files are in force")

    def _read(self) -> Contents:
        """Read the files and return their contents. Raises BadTls if one cannot be read."""
        found = {}
        for path in self._files:
            if path is not None:
                try:
                    found[path] = read_small_file(path)
                except FileNotFoundError:
                    raise BadTls(f"the file {path.name} does not exist") from None
                except OSError as error:
                    raise BadTls(f"{path.name} cannot be read: {_reason(error)}") from None
        return found

    def _load(self, found: Contents) -> Loaded:
        """Create a context from the files' contents. Raises BadTls."""
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
                # OpenSSL can load pairs only from files. Files may change between two reads, so give it in-memory
                # copies.
                paths = [
                    opened.enter_context(memory_file(found[path])) for path in (files.certificate, files.key) if path
                ]
                # The password is passed as a function. Otherwise, OpenSSL would prompt for the password of an encrypted
                # key.
                context.load_cert_chain(paths[0], paths[1] if len(paths) > 1 else None, lambda: password)
        except (OSError, ValueError) as error:
            names = " and ".join(path.name for path in (files.certificate, files.key) if path)
            raise BadTls(f"certificate and key in {names} cannot be used: {_reason(error)}") from None
        return Loaded(found, context, expiry(found[files.certificate]))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return openssl_reason(error)
    return error.strerror or "not readable" if isinstance(error, OSError) else str(error)


_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END (?:X509 |TRUSTED )?CERTIFICATE-----", re.DOTALL
)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


class _Element(NamedTuple):
    """An element of DER: its tag, and the offsets at which its content begins and ends."""

    tag: int
    start: int
    end: int


def expiry(pem: bytes) -> float:
    """Return the earliest expiry of the certificates in `pem`, in seconds since 1970. After that, the chain is invalid.

    OpenSSL has already parsed the certificates, and there is at least one.
    """
    return min(_not_after(b64decode(body)) for body in _CERTIFICATE.findall(pem))


def _not_after(der: bytes) -> float:
    certificate = _parse_element(der, 0)
    field = _parse_element(der, _parse_element(der, certificate.start).start)
    for _ in range(4 if field.tag == _VERSION else 3):
        field = _parse_element(der, field.end)
    not_before = _parse_element(der, field.start)
    time = _parse_element(der, not_before.end)
    text = der[time.start : time.end].decode("ascii")
    if time.tag == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _parse_element(der: bytes, at: int) -> _Element:
    size, start = der[at + 1], at + 2
    if size & 0x80:  # the long form: the length takes this many bytes
        start += size & 0x7F
        size = int.from_bytes(der[at + 2 : start], "big")
    return _Element(der[at], start, start + size)

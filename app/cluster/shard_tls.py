"""TLS between the parts of a cluster: which certificates are trusted, and which files shards are started with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from app.security.pem_files import openssl_reason, trust


@dataclass(frozen=True, slots=True)
class ShardTls:
    """Paths of PEM files, the same on each machine: its certificate, its key, and the authorities for all machines.

    A machine's certificate contains the address that other machines use to reach it. `key` is "" if the key is in the
    same file as the certificate.
    """

    certificate: str
    key: str
    authorities: str


def client_context(authorities: Path, content: bytes | None = None) -> ssl.SSLContext:
    """Return a client context that trusts only certificates issued by these authorities for the requested host.

    `content` is the file's data, if it has already been read. Raises OSError; its message includes the file's path.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        trust(context, authorities.read_bytes() if content is None else content)
    except ssl.SSLError as error:
        raise OSError(f"the authorities of shards in {authorities} cannot be used: {openssl_reason(error)}") from None
    except OSError as error:
        raise OSError(f"the authorities of shards in {authorities} cannot be read: {error.strerror}") from None
    return context

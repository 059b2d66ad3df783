"""TLS between the parts of a cluster: which certificates are trusted, and the files that shards are started with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from app.security.pem_files import openssl_reason, trust


@dataclass(frozen=True, slots=True)
class ShardTls:
    """PEM files at the same paths on each machine: the machine's certificate and key, and the authorities of all
    machines.

    A certificate names the address by which other machines know its machine. `key` is "" if the key is in the
    certificate's file.
    """

    certificate: str
    key: str
    authorities: str


def client_context(authorities: Path, content: bytes | None = None) -> ssl.SSLContext:
    """Return a client's context that trusts only certificates of these authorities for the requested host.

    `content` is the file's content, if it has already been read. Raises OSError, whose text names the file.
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

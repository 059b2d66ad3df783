"""TLS to the shards: which certificates are taken of them, and the files that shards are started with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from app.security.pem_files import openssl_reason, trust


@dataclass(frozen=True, slots=True)
class ShardTls:
    """PEM files at the same paths on each machine: its own certificate and key, and the authorities of all of them.

    A certificate names the address at which its machine is known to the others. `key` is "" where it stands in the
    certificate's file.
    """

    certificate: str
    key: str
    authorities: str


def trusting(authorities: Path, content: bytes | None = None) -> ssl.SSLContext:
    """A client's context that takes certificates of these authorities alone, for the host that is asked.

    `content` is that of the file, where it has been read. Raises OSError, which names the file.
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

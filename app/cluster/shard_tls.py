"""TLS to the shards: which certificates are taken of them, and the files that shards are started with."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ShardTls:
    """PEM files at the same paths on each machine: its own certificate and key, and the authorities of all of them.

    A certificate names the address at which its machine is known to the others. `key` is "" where it stands in the
    certificate's file.
    """

    certificate: str
    key: str
    authorities: str


def trusting(authorities: Path) -> ssl.SSLContext:
    """A client's context that takes certificates of these authorities alone, for the host that is asked.

    Raises OSError, which names the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        reason = (error.reason or "not what OpenSSL reads").lower().replace("_", " ")
        raise OSError(f"the authorities of shards in {authorities} cannot be used: {reason}") from None
    except OSError as error:
        raise OSError(f"the authorities of shards in {authorities} cannot be read: {error.strerror}") from None
    return context

"""OpenSSL and files of PEM whose contents have been read: it takes most of them by a path only."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager


def trust(context: ssl.SSLContext, authorities: bytes) -> None:
    """Have `context` trust these authorities, as PEM. Raises OSError, also where they are none."""
    with memory_file(authorities) as path:
        context.load_verify_locations(path)


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """The path of a file in memory that holds `content`, and that only this process can open."""
    fd = os.memfd_create("gathernd-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def openssl_reason(error: ssl.SSLError) -> str:
    """What OpenSSL says is wrong, in words."""
    return (error.reason or "not what OpenSSL reads").lower().replace("_", " ")

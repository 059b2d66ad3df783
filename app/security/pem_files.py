"""Pass PEM data that is already in memory to OpenSSL, which requires a path for most of it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager


def trust(context: ssl.SSLContext, authorities: bytes) -> None:
    """Make `context` trust these authorities, given as PEM. Raises OSError, including if they are invalid."""
    with memory_file(authorities) as path:
        context.load_verify_locations(path)


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory that holds `content` and that only this process can open."""
    fd = os.memfd_create("gathernd-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def openssl_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason for an error in words."""
    return (error.reason or "not what OpenSSL reads").lower().replace("_", " ")

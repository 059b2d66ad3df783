"""The error raised when a request to etcd gets no usable response. Callers retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EtcdFailed(OSError):
    """etcd does not respond or refuses the request, or something else responds at its address."""


@contextmanager
def parsing() -> Iterator[None]:
    """Parse a response in this context. Raises EtcdFailed if the response does not have etcd's format."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EtcdFailed(f"an answer of etcd cannot be read: {error!r}") from None

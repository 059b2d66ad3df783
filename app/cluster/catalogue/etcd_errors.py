"""The error of asking etcd without an answer that can be used; callers ask again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EtcdFailed(OSError):
    """etcd does not answer, refuses, or something else than etcd answers in its place."""


@contextmanager
def understood() -> Iterator[None]:
    """A context that reads an answer. Raises EtcdFailed if the answer lacks what etcd's have."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EtcdFailed(f"an answer of etcd cannot be read: {error!r}") from None

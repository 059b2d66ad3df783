"""The error of a request to etcd without a usable answer; callers ask again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EtcdFailed(OSError):
    """etcd does not answer or refuses, or something other than etcd answers at its address."""


@contextmanager
def understood() -> Iterator[None]:
    """A context that parses an answer. Raises EtcdFailed if the answer lacks the members of etcd's answers."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EtcdFailed(f"an answer of etcd cannot be read: {error!r}") from None

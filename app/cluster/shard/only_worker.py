"""Elect the worker of a shard that acts for all workers: the one that holds the lock on a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

_LOOK_S: Final = 0.2


@contextmanager
def only_worker(lock: Path, is_ready: Callable[[], bool], stop: Event) -> Iterator[bool]:
    """Wait until the service is ready and this process holds the lock, then keep the lock within the context.

    Yields False if `stop` was set first, otherwise True.
    """
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not (is_ready() and _is_locked(fd)):
            if stop.wait(_LOOK_S):
                yield False
                return
        yield True
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    """Acquire the lock if it is free. Returns whether this process holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

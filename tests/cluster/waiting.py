"""Waiting in tests for what comes to be so by itself."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(look: Callable[[], object], what: str, seconds: float = 100) -> None:
    """Wait until `look` says something true; fail after `seconds`, with `what`."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, f"not after {seconds} s: {what}"
        time.sleep(0.05)

"""Waiting in tests for what comes to be so by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx


def until(look: Callable[[], object], what: str, seconds: float = 100) -> None:
    """Wait until `look` says something true; fail after `seconds`, with `what`."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, f"not after {seconds} s: {what}"
        time.sleep(0.05)


def acknowledged(send: Callable[[], httpx.Response], seconds: float = 60) -> httpx.Response:
    """The answer to a change with an Idempotency-Key, which is sent again while no primary takes it, as callers do."""
    end = time.monotonic() + seconds
    while (answer := send()).status_code == 503 and time.monotonic() < end:
        time.sleep(float(answer.headers.get("retry-after", "1")))
    return answer

"""Retries, without I/O: decides which answers and failures are final, and how long to wait before the next attempt.

Both clients, sync and async, use `Attempts`: they send the request, pass its answer or failure to it, and get either
the result or the seconds to wait before they send the request again.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from ._failures import refuses_our_certificate
from ._messages import Answer, Request
from .errors import (
    BY_CODE,
    ConnectError,
    Disconnected,
    NotReady,
    ServiceError,
    Timeout,
    TransportError,
    UnexpectedAnswer,
    UntrustedCertificate,
)

T = TypeVar("T")
_FIRST_PAUSE: Final = 0.1
"""Seconds before the first retry after a failed connection; doubles with each retry."""
READY_PAUSE_S: Final = 0.1
"""Seconds between two readiness checks."""
_OF_PROXIES: Final = frozenset((502, 503, 504))
"""Statuses that a proxy returns if the service behind it does not respond."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Limits on the retries of a request: their number, and the total seconds of the pauses before them."""

    count: int = 3
    seconds: float = 30.0


class Attempts(Generic[T]):
    """The attempts of one request; the last one begins before `until` (in `time.monotonic()` time).

    A request is retried:

    - after a 503 from the service with Retry-After: the service did nothing, or did part of a scatter, and the
      Idempotency-Key prevents the scatter from being applied twice
    - if no connection could be made
    - only if the request is retryable: if the connection broke, or a proxy responded with 502, 503 or 504
    """

    def __init__(self, request: Request[T], retries: Retries, until: float | None) -> None:
        self._request = request
        self._left = retries.count
        self._seconds = retries.seconds
        self._until = until
        self._backoff = _FIRST_PAUSE
        self.result: T

    def pause_after(self, outcome: Answer | TransportError) -> float | None:
        """Return the seconds to wait before the next attempt, or None if `result` is set. Raises GatherNDError."""
        if isinstance(outcome, Answer) and 200 <= outcome.status < 300:
            self.result = self._request.read(outcome)
            return None
        error = service_error(outcome) if isinstance(outcome, Answer) else outcome
        pause = self._wanted_pause(outcome, error)
        if self._until is not None and pause is not None and monotonic() + pause >= self._until:
            pause = None
        if pause is None or not self._left or pause > self._seconds:
            if self._request.note is not None:
                note = self._request.note(error)
                if note is not None:
                    error.add_note(note)
            raise error
        self._left -= 1
        self._seconds -= pause
        return pause

    def _wanted_pause(self, outcome: Answer | TransportError, error: TransportError | ServiceError) -> float | None:
        """Return the seconds to wait if a retry is safe and may help, else None."""
        asked = _retry_after(outcome) if isinstance(outcome, Answer) else None
        if isinstance(error, ServiceError):
            # Jitter: requests that were refused together should not all be retried at the same time.
            return None if error.status != 503 or asked is None else asked * random.uniform(1.0, 1.1)  # noqa: S311
        if isinstance(error, ConnectError):
            again = not isinstance(error, UntrustedCertificate)
        elif isinstance(error, UnexpectedAnswer):
            again = self._request.retryable and error.status in _OF_PROXIES
        else:
            again = self._request.retryable and isinstance(error, Disconnected)
        if not again:
            return None
        backoff, self._backoff = self._backoff, self._backoff * 2
        return max(asked or 0.0, backoff * random.uniform(0.5, 1.0))  # noqa: S311  (jitter, no secret)


def call_end(timeout: float | None) -> float | None:
    """Return the deadline, in `time.monotonic()` time, of a call that may take `timeout` seconds from now.

    If `timeout` is None, returns None (no limit). Raises ValueError for any other value that is not a positive number.
    """
    if timeout is None:
        return None
    if not 0 < timeout < 1e9:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    return monotonic() + timeout


def may_become_ready(error: TransportError | NotReady) -> bool:
    """Return True if the service may still be starting: it is not ready or does not respond, or a proxy reports this.

    If a certificate is not trusted, on either side, waiting does not help.
    """
    if isinstance(error, UnexpectedAnswer):
        return error.status in _OF_PROXIES
    if isinstance(error, UntrustedCertificate) or refuses_our_certificate(error.__cause__):
        return False
    return isinstance(error, ConnectError | Disconnected | NotReady | Timeout)


def service_error(answer: Answer) -> ServiceError | UnexpectedAnswer:
    """Convert an answer with an error status to an exception."""
    try:
        body = json.loads(bytes(answer.body))
        code = body["code"]
        return BY_CODE.get(code, ServiceError)(answer.status, body, _retry_after(answer))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = bytes(answer.body[:200]).decode("utf-8", "replace")
        return UnexpectedAnswer(
            f"status {answer.status} with a body that is not the service's: {text!r}", answer.status
        )


def _retry_after(answer: Answer) -> float | None:
    """Return the seconds of the Retry-After field, or None if it is missing or a date."""
    text: Any = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None

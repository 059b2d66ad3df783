"""Retries, without input or output: which answers and failures are final, and how long to wait before the next attempt.

Both clients, sync and async, drive an `Attempts`: they send the request, hand over its answer or failure, and get the
result or a pause in seconds, after which they send it again.
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
"""Seconds before the first retry after a failed connection; each further pause is twice as long."""
READY_PAUSE_S: Final = 0.1
"""Seconds between two questions whether the service is ready."""
_OF_PROXIES: Final = frozenset((502, 503, 504))
"""Statuses with which a proxy says that the service behind it did not answer."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request may be sent again, and the most seconds that the pauses before may take in all."""

    count: int = 3
    seconds: float = 30.0


class Attempts(Generic[T]):
    """The attempts of one request, which end at `until` (of `time.monotonic`) at the latest.

    Sent again are: what the service refused with 503 and a Retry-After, since it did nothing, or a part of a scatter,
    whose key keeps that from being done twice; what could not connect;
    and, only where the request is retryable, what lost its connection or got a proxy's 502, 503 or 504.
    """

    def __init__(self, request: Request[T], retries: Retries, until: float | None) -> None:
        self._request = request
        self._left = retries.count
        self._seconds = retries.seconds
        self._until = until
        self._backoff = _FIRST_PAUSE
        self.result: T

    def pause_after(self, outcome: Answer | TransportError) -> float | None:
        """Seconds to wait before the request is sent again, or None: `result` is the result. Raises GatherNDError."""
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
        """Seconds to wait where sending again may help and does no harm, else None."""
        asked = _retry_after(outcome) if isinstance(outcome, Answer) else None
        if isinstance(error, ServiceError):
            # A little more than is asked, so that those who were refused together do not come back together.
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
    """When a call that may take `timeout` seconds from now must end, of `time.monotonic`. Raises ValueError."""
    if timeout is None:
        return None
    if not 0 < timeout < 1e9:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    return monotonic() + timeout


def may_become_ready(error: TransportError | NotReady) -> bool:
    """Whether a service that starts may be behind it: it refuses, nothing answers yet, or a proxy says so for it.

    A certificate that one side does not trust stays what it is.
    """
    if isinstance(error, UnexpectedAnswer):
        return error.status in _OF_PROXIES
    if isinstance(error, UntrustedCertificate) or refuses_our_certificate(error.__cause__):
        return False
    return isinstance(error, ConnectError | Disconnected | NotReady | Timeout)


def service_error(answer: Answer) -> ServiceError | UnexpectedAnswer:
    """The error that an answer without success is."""
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
    """The seconds of the field Retry-After, None if there is none or a date."""
    text: Any = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None

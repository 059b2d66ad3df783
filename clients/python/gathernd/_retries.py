"""Retries, without input or output: which answers and failures are final, and how long to wait before the next attempt.

Both clients, sync and async, drive the generator `sending`: it yields a pause in seconds, after which they send the
request, and is sent the answer or the failure.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, TypeVar

import httpx

from ._endpoints import Answer, Request
from .errors import BY_CODE, ConnectError, Disconnected, ServiceError, Timeout, TransportError, UnexpectedAnswer

T = TypeVar("T")
_FIRST_PAUSE: Final = 0.1
"""Seconds before the first retry after a failed connection; each further pause is twice as long."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request may be sent again, and the most seconds that the pauses before may take in all."""

    count: int = 3
    seconds: float = 30.0


def sending(request: Request[T], retries: Retries) -> Generator[float, Answer | TransportError, T]:
    """Yields the seconds to wait before the request is sent (again), takes the answer or failure, returns the result.

    Sent again are: what the service refused with 503 and a Retry-After, since it did nothing; what could not connect;
    and, only where the request is retryable, what lost its connection. Raises GatherNDError.
    """
    pause, waited, backoff = 0.0, 0.0, _FIRST_PAUSE
    left = retries.count
    while True:
        outcome = yield pause
        error: TransportError | ServiceError
        wanted: float | None
        if isinstance(outcome, Answer):
            if 200 <= outcome.status < 300:
                return request.read(outcome)
            error = _service_error(outcome)
            wanted = error.retry_after if isinstance(error, ServiceError) and error.status == 503 else None
        else:
            error = outcome
            again = isinstance(error, ConnectError) or (request.retryable and isinstance(error, Disconnected))
            wanted = backoff if again else None
            backoff *= 2
        if wanted is None or left == 0 or waited + wanted > retries.seconds:
            raise error
        left -= 1
        waited += wanted
        pause = wanted


def _service_error(answer: Answer) -> ServiceError | UnexpectedAnswer:
    try:
        body = json.loads(bytes(answer.body))
        code = body["code"]
        retry_after = answer.headers.get("retry-after", "")
        seconds = float(retry_after) if retry_after.isdigit() else None
        return BY_CODE.get(code, ServiceError)(answer.status, body, seconds)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = bytes(answer.body[:200]).decode("utf-8", "replace")
        return UnexpectedAnswer(
            f"status {answer.status} with a body that is not the service's: {text!r}", answer.status
        )


# Our error for each of httpx's; the first row that fits counts. Whatever httpx raises while it sends and receives is an
# HTTPError.
_ERROR_OF_HTTPX: Final[tuple[tuple[type[httpx.HTTPError], type[TransportError]], ...]] = (
    (httpx.ConnectError, ConnectError),
    (httpx.ConnectTimeout, ConnectError),
    (httpx.PoolTimeout, ConnectError),
    (httpx.ProxyError, ConnectError),
    (httpx.UnsupportedProtocol, ConnectError),
    (httpx.TimeoutException, Timeout),
    (httpx.NetworkError, Disconnected),
    (httpx.RemoteProtocolError, Disconnected),
    (httpx.HTTPError, TransportError),
)


def transport_error(error: httpx.HTTPError) -> TransportError:
    """The error of this package for one of httpx."""
    error_class = next(ours for theirs, ours in _ERROR_OF_HTTPX if isinstance(error, theirs))
    return error_class(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

"""The request log: one line for each request that is refused or fails or, in the access log, for every request.

A line contains the method, route, path and identifiers, the label of the caller's API key, and the error from the
catalogue. It never contains a body, a query, a header, or an error's detail, because details quote bodies. `logs`
formats the lines.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from time import monotonic
from typing import Any, Final, NamedTuple

from app.telemetry.logs import LONGEST

requests_logger = logging.getLogger("gathernd.requests")

_WARNINGS: Final = frozenset((503, 507))


class RequestRecord(NamedTuple):
    """The fields of a finished request's line. `status` is 0 if the client disconnected before it got a response.

    `code` is the error's code, or None. `key` is the label of the API key that was sent, or None if no known key was
    sent.
    """

    method: str
    route: str
    path: str
    status: int
    code: str | None
    seconds: float
    request_id: str
    trace_id: str | None
    client: str | None
    key: str | None


class RequestLog:
    """Writes lines about requests: all of them if `access` is set, otherwise those that were refused or failed.

    Without `access`, at most `rate` lines are written per second. Lines beyond that are counted and summarized in one
    line, so that a client that sends nothing but invalid requests cannot fill the disk or keep the service busy.
    Without `access`, errors on the routes in `readiness` are not logged, because changes of the service's state are
    logged separately.
    """

    def __init__(self, rate: int, readiness: Collection[str] = (), *, access: bool = False) -> None:
        self.access = access
        self._readiness = readiness
        self._rate = self._left = rate
        self._since = monotonic()
        self._suppressed: Counter[str] = Counter()

    def write(self, request: RequestRecord) -> None:
        """Write a request's line or, if this second already has too many lines, count it."""
        level = _level(request)
        if request.route in self._readiness and not self.access:
            return
        if not requests_logger.isEnabledFor(level):
            return
        if not self.access:
            self.sweep()
            if self._left <= 0:
                self._suppressed[request.code or str(request.status)] += 1
                return
            self._left -= 1
        requests_logger.log(level, _message(request), extra={"fields": _fields(request)})

    def sweep(self) -> None:
        """Begin a new second when the current one is over.

        Call this regularly, so that a summary does not wait for the next request.
        """
        now = monotonic()
        if now - self._since < 1.0:
            return
        self._since, self._left = now, self._rate
        if self._suppressed:
            fields = {"requests": self._suppressed.total(), "codes": dict(self._suppressed)}
            requests_logger.warning("requests refused and not logged one by one", extra={"fields": fields})
            self._suppressed.clear()


def _level(request: RequestRecord) -> int:
    if request.status in _WARNINGS:
        return logging.WARNING
    return logging.ERROR if request.status == 500 else logging.INFO


def _message(request: RequestRecord) -> str:
    if request.code is None:
        return "request answered"
    return "client gone" if request.status == 0 else "request failed" if request.status >= 500 else "request refused"


def _fields(request: RequestRecord) -> dict[str, Any]:
    fields = request._asdict()
    del fields["seconds"]
    fields["path"] = request.path[:LONGEST]
    fields["milliseconds"] = round(request.seconds * 1e3, 3)
    return {name: value for name, value in fields.items() if value is not None}

"""The log of requests: a line for each that is refused or fails, or for every one (the access log).

A line says what was asked for by method, route, path and identifiers, by whom (the label of the API key), and which
error of the catalogue was the answer. It never has a body, a query, a header or an error's detail, which quotes bodies.
How a line is written is in `logs`.
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
    """What a line says of a request that is over: `status` is 0 where the client went away first, `code` its error's,
    None without one; `key` is the label of the API key that it came with, None without a known one.
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
    """Writes the lines about requests: all of them with `access`, else those that were refused or failed.

    Of the latter at most `rate` a second; further ones are counted and summed up in one line, so that a client that
    sends nothing but nonsense cannot fill the disk or keep the service busy with writing. Errors of the routes
    `readiness` are the state of the service, for which there are other lines.
    """

    def __init__(self, rate: int, readiness: Collection[str] = (), *, access: bool = False) -> None:
        self.access = access
        self._readiness = readiness
        self._rate = self._left = rate
        self._since = monotonic()
        self._suppressed: Counter[str] = Counter()

    def write(self, request: RequestRecord) -> None:
        """Write the line of a request, or count it where there were too many in this second."""
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
        """Begin a new second if it is time; to be called regularly, so that no sum waits for the next request."""
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

"""Log lines: one for each request that is refused or fails, and the service's own, as text or as JSON.

A line says what was asked for by method, route, path and identifiers, and which error of the catalogue was the answer.
It never has a body, a query, a header or an error's detail, which quotes bodies. An exception is told as the places it
went through, by module and line, not by the folders of this machine. Whatever a client made up is escaped: no client
can begin a line, end one, or add to its fields.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from time import monotonic
from traceback import walk_tb
from typing import Any, Final, NamedTuple

from app.orjson_dump import dump

logger = logging.getLogger("gathernd")
requests_logger = logging.getLogger("gathernd.requests")

LONGEST: Final = 256
"""Most characters that a line tells of a path or of what an exception says."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/{}+-]+")
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_STATES: Final = frozenset(("/readyz", "/v2/health/ready"))
"""Routes whose errors say how things stand with the service, which has lines of its own."""
_WARNINGS: Final = frozenset((503, 507))


class Seen(NamedTuple):
    """A request that is over. `status` is 0 where the client went away first; `code` is its error's, if it had one."""

    method: str
    route: str
    path: str
    status: int
    code: str | None
    seconds: float
    request_id: str
    trace_id: str | None
    client: str | None


class RequestLog:
    """Writes the lines about requests: all of them with `access`, else those that were refused or failed.

    Of the latter `rate` a second at most; what is beyond is counted and told in one line, so that whoever sends nothing
    but nonsense cannot fill the disk or keep the service busy with writing.
    """

    def __init__(self, rate: int, *, access: bool = False) -> None:
        self.access = access
        self._rate = self._left = rate
        self._since = monotonic()
        self._untold: Counter[str] = Counter()

    def tell(self, seen: Seen) -> None:
        """Write a request's line, or count it."""
        level = _level(seen)
        if seen.route in _STATES and not self.access:
            return
        if not requests_logger.isEnabledFor(level):
            return
        if not self.access:
            self.sweep()
            if self._left <= 0:
                self._untold[seen.code or str(seen.status)] += 1
                return
            self._left -= 1
        requests_logger.log(level, _what(seen), extra={"fields": _fields(seen)})

    def sweep(self) -> None:
        """Begin a new second if it is time; to be called now and then also where nothing comes."""
        now = monotonic()
        if now - self._since < 1.0:
            return
        self._since, self._left = now, self._rate
        if self._untold:
            fields = {"requests": self._untold.total(), "codes": dict(self._untold)}
            requests_logger.warning("requests refused and not told one by one", extra={"fields": fields})
            self._untold.clear()


def _level(seen: Seen) -> int:
    if seen.status in _WARNINGS:
        return logging.WARNING
    return logging.ERROR if seen.status == 500 else logging.INFO


def _what(seen: Seen) -> str:
    if seen.code is None:
        return "request answered"
    return "client gone" if seen.status == 0 else "request failed" if seen.status >= 500 else "request refused"


def _fields(seen: Seen) -> dict[str, Any]:
    fields = seen._asdict()
    del fields["seconds"]
    fields["path"] = seen.path[:LONGEST]
    fields["milliseconds"] = round(seen.seconds * 1e3, 3)
    return {name: value for name, value in fields.items() if value is not None}


def trace_id_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The trace that the caller says this request belongs to (W3C Trace Context), None where it says nothing valid."""
    given = headers.get(b"traceparent")
    found = None if given is None else _TRACEPARENT.fullmatch(given)
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[4]):
        return None
    return found[2].decode() if found[2].strip(b"0") and found[3].strip(b"0") else None


class TextFormatter(logging.Formatter):
    """A line for people: time, level, logger, message, then fields as name=value; an exception on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines of a record."""
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {printable(record.getMessage())}"
        for name, value in getattr(record, "fields", {}).items():
            line += f" {name}={_shown(value)}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\nTraceback, innermost last:" + "".join(f"\n  {text}" for text in told(record.exc_info[1]))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object on one line: time (RFC 3339, UTC), level, logger, message, process, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = list(told(record.exc_info[1]))
        text = dump(line).decode()
        return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(sign: str) -> str:
    """A character as JSON may have it; what some readers take for the end of a line is legal there and yet escaped."""
    if sign.isprintable():
        return sign
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def told(error: BaseException) -> Iterator[str]:
    """An exception and what led to it: the places each went through as module:function:line, then what it says."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None and earlier not in chain:
        chain.append(earlier)
    for one in reversed(chain):
        for frame, line in walk_tb(one.__traceback__):
            yield f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}:{line}"
        yield printable(f"{type(one).__name__}: {one}"[:LONGEST])


def printable(text: str) -> str:
    """`text` with everything escaped that is not to be seen, line breaks and terminals' escape sequences included."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text
    )


def _shown(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else printable(dump({"": value}).decode()[4:-1])


FORMATS: Final = {"text": TextFormatter, "json": JsonFormatter}


def configuration(form: str, level: str) -> dict[str, Any]:
    """What `logging.config` is told: every line of the process, uvicorn's too, to stderr in one form."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATS[form]}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {"": {"handlers": ["stderr"], "level": level.upper()}},
    }

"""Log lines: one for each request that is refused or fails, and the service's own, as text or as JSON.

A line says what was asked for by method, route, path and identifiers, and which error of the catalogue was the answer.
It never has a body, a query, a header or an error's detail, which quotes bodies. A traceback is
given by module and line, without the folders of this machine. What a client sent is escaped: no client can begin a
line, end one, or add to its fields.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from time import monotonic
from traceback import walk_tb
from typing import Any, Final, NamedTuple

from app.orjson_dump import dump

logger = logging.getLogger("gathernd")
requests_logger = logging.getLogger("gathernd.requests")

LONGEST: Final = 256
"""Most characters of a path or of an exception's text in a line."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/{}+-]+")
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_WARNINGS: Final = frozenset((503, 507))


class RequestRecord(NamedTuple):
    """What a line says of a request that is over: `status` is 0 where the client went away first, `code` its error's,
    None without one.
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
            line += "\nTraceback, innermost last:" + "".join(
                f"\n  {text}" for text in traceback_lines(record.exc_info[1])
            )
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
            line["traceback"] = list(traceback_lines(record.exc_info[1]))
        text = dump(line).decode()
        return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    """A character as JSON writes it, escaped unless printable: JSON allows some that readers take for a line's end."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def traceback_lines(error: BaseException) -> Iterator[str]:
    """The lines of an exception and of its causes: module:function:line for each frame, then type and text."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None and earlier not in chain:
        chain.append(earlier)
    for one in reversed(chain):
        for frame, line in walk_tb(one.__traceback__):
            yield f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}:{line}"
        yield printable(f"{type(one).__name__}: {one}"[:LONGEST])


def printable(text: str) -> str:
    """`text` with all characters escaped that are not printable: line breaks, terminals' escape sequences."""
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
    """The argument of `logging.config.dictConfig`: all lines, uvicorn's too, go to stderr in one form."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATS[form]}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {"": {"handlers": ["stderr"], "level": level.upper()}},
    }

"""Format log lines as text or JSON, both those about requests (`request_log`) and the service's own.

Tracebacks show modules and lines, but not the folders of this machine. Text from clients is escaped, so that no client
can begin or end a line or add fields to it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from traceback import walk_tb
from typing import Any, Final

from app.surrogate_safe_json import dump

LONGEST: Final = 256
"""Maximum number of characters of a path, or of an exception's text, in a line."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/{}+-]+")


def _name(record: logging.LogRecord) -> str:
    """Return the logger's name. Lines from uvicorn's loggers get the service's name, because they are about the
    service.
    """
    return "gathernd" if record.name.partition(".")[0] == "uvicorn" else record.name


class TextFormatter(logging.Formatter):
    """Formats records for people: time, level, logger, message and name=value fields.

    Exceptions follow on separate lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line or lines of a record."""
        line = f"{self.formatTime(record)} {record.levelname} {_name(record)}: {printable(record.getMessage())}"
        for name, value in getattr(record, "fields", {}).items():
            line += f" {name}={_field_text(value)}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\nTraceback, innermost last:" + "".join(
                f"\n  {text}" for text in traceback_lines(record.exc_info[1])
            )
        return line


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line: time (RFC 3339, UTC), level, logger, message, process, and other fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": _name(record),
            "message": record.getMessage(),
            "process": record.process,
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = list(traceback_lines(record.exc_info[1]))
        text = dump(line).decode()
        return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    """Escape a character as in JSON unless it is printable.

    This includes unprintable characters that JSON allows, because some readers treat them as line ends.
    """
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def traceback_lines(error: BaseException) -> Iterator[str]:
    """Yield the lines of an exception and its causes: module:function:line for each frame, then type and text.

    Exceptions suppressed by `raise ... from None` are left out, because they may quote credentials.
    """
    chain = [error]
    while (earlier := _cause_of(chain[-1])) is not None and earlier not in chain:
        chain.append(earlier)
    for one in reversed(chain):
        for frame, line in walk_tb(one.__traceback__):
            yield f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}:{line}"
        yield printable(f"{type(one).__name__}: {one}"[:LONGEST])


def _cause_of(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def printable(text: str) -> str:
    """Escape all unprintable characters of `text`, such as line breaks and terminal escape sequences."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text
    )


def _field_text(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else printable(dump({"": value}).decode()[4:-1])


FORMATS: Final = {"text": TextFormatter, "json": JsonFormatter}


def configuration(form: str, level: str) -> dict[str, Any]:
    """Return the argument of `logging.config.dictConfig`. All lines, including uvicorn's, go to stderr in one format.

    The debug level applies only to the service, because otherwise Numba would log thousands of lines at the first
    startup.
    """
    loggers: dict[str, Any] = {"": {"handlers": ["stderr"], "level": level.upper()}}
    # These loggers log each request with its URL, whose query may hold credentials.
    loggers |= {name: {"level": "WARNING"} for name in ("httpx", "httpcore")}
    # For each malformed trace field, this logger logs a warning that quotes the field. Callers could use that to fill
    # the log, because these warnings have no rate limit.
    loggers["opentelemetry.trace"] = {"level": "ERROR"}
    if level.upper() == "DEBUG":
        loggers["numba"] = {"level": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": FORMATS[form]}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": loggers,
    }

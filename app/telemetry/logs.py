"""How log lines are written, as text or as JSON: those of requests (`request_log`) and the service's own.

A traceback is given by module and line, without the folders of this machine. What a client sent is escaped: no client
can begin a line, end one, or add to its fields.
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
"""Most characters of a path or of an exception's text in a line."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/{}+-]+")


def _name(record: logging.LogRecord) -> str:
    """The logger's name; that of uvicorn is the service's own, for it is this service that starts or stops."""
    return "gathernd" if record.name.partition(".")[0] == "uvicorn" else record.name


class TextFormatter(logging.Formatter):
    """A line for people: time, level, logger, message, then fields as name=value; an exception on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines of a record."""
        line = f"{self.formatTime(record)} {record.levelname} {_name(record)}: {printable(record.getMessage())}"
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
    """A character as JSON writes it, escaped unless printable: JSON allows some that readers take for a line's end."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def traceback_lines(error: BaseException) -> Iterator[str]:
    """The lines of an exception and of its causes: module:function:line for each frame, then type and text.

    What an exception was raised `from None` to hide is left out: it may quote credentials.
    """
    chain = [error]
    while (earlier := _earlier(chain[-1])) is not None and earlier not in chain:
        chain.append(earlier)
    for one in reversed(chain):
        for frame, line in walk_tb(one.__traceback__):
            yield f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}:{line}"
        yield printable(f"{type(one).__name__}: {one}"[:LONGEST])


def _earlier(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


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
    """The argument of `logging.config.dictConfig`: all lines, uvicorn's too, go to stderr in one form.

    The level debug is for the service alone: Numba's would be thousands of lines for a first start.
    """
    loggers: dict[str, Any] = {"": {"handlers": ["stderr"], "level": level.upper()}}
    # These log each request with its URL, whose query may hold credentials.
    loggers |= {name: {"level": "WARNING"} for name in ("httpx", "httpcore")}
    # It warns of malformed trace fields and quotes them: callers could fill the log with lines that no rate limits.
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

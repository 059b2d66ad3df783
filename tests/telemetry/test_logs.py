"""The forms of a log line, and what of a request gets into one."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.api.route_table import READINESS
from app.telemetry import request_log
from app.telemetry.logs import JsonFormatter, TextFormatter
from app.telemetry.request_log import RequestLog, RequestRecord

TRACE = "0af7651916cd43dd8448eb211c80319c"
HOSTILE = [
    "a\nINFO gathernd: forged",
    "a\r\n{}",
    "\x1b[2J\x1b]0;owned\x07",
    'x" status="200',
    "a\u2028b\u202ec\x85d",
    "\ud800 alone",
    "\x00\x7f",
    "\U000e0001",
    "%s %d {0} {name}",
]


def request(**changes: Any) -> RequestRecord:
    one = RequestRecord(
        "POST", "/gathernd", "/gathernd", 422, "index_out_of_bounds", 0.0015, "id-1", TRACE, "127.0.0.1", "alice"
    )
    return one._replace(**changes)


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("gathernd", logging.INFO, "file.py", 1, message, (), None)
    made.fields = fields
    return made


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[list[logging.LogRecord]]:
    handler = Kept()
    logger = request_log.requests_logger
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.records
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_client_made_up_stays_inside_its_field(text: str) -> None:
    line = TextFormatter().format(record("refused", path=text, status=422))
    assert line.isprintable()
    assert line.endswith(" status=422")
    assert " path=" in line
    assert not line.split(" path=", 1)[1].startswith("a status")
    assert line.count('status="200') == 0
    dumped = JsonFormatter().format(record("refused", path=text, status=422))
    assert dumped.isprintable()
    parsed = json.loads(dumped)
    assert parsed["status"] == 422
    assert parsed["path"] == text.encode("utf-8", "replace").decode()
    assert "\n" not in JsonFormatter().format(record(text))


@pytest.mark.parametrize(
    ("status", "level"), [(0, "INFO"), (400, "INFO"), (501, "INFO"), (500, "ERROR"), (503, "WARNING"), (507, "WARNING")]
)
def test_the_level_says_whose_fault_it_is(status: int, level: str, kept: list[logging.LogRecord]) -> None:
    RequestLog(10).write(request(status=status))
    assert kept[0].levelname == level


def test_what_an_exception_was_raised_from_none_to_hide_is_not_told() -> None:
    try:
        try:
            try:
                int("a secret")
            except ValueError:
                raise RuntimeError("in our words") from None
        except RuntimeError:
            raise OSError("while that was handled")  # noqa: B904
    except OSError:
        made = logging.LogRecord("gathernd", logging.ERROR, "file.py", 1, "failed", (), sys.exc_info())
    for line in (TextFormatter().format(made), JsonFormatter().format(made)):
        assert "while that was handled" in line
        assert "in our words" in line
        assert "secret" not in line


def test_debug_is_the_level_of_the_service_and_not_of_its_compiler() -> None:
    script = (
        "import logging.config; from app.telemetry.logs import configuration; "
        "logging.config.dictConfig(configuration('text', 'debug')); "
        "print(logging.getLogger('gathernd').isEnabledFor(10), logging.getLogger('numba.core.ssa').isEnabledFor(10))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


@pytest.mark.parametrize("field", [{"tracestate": "no state" * 50}, {"long": "x" * 600}])
def test_what_callers_write_into_trace_fields_makes_no_lines_of_the_library(field: dict[str, str]) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
    fields = {"traceparent": f"01-{TRACE}-b7ad6b7169203331-01-{field.pop('long', '')}", **field}
    script = (
        "import logging.config, sys; from app.telemetry.logs import configuration; "
        "logging.config.dictConfig(configuration('json', 'info')); "
        "from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator; "
        f"TraceContextTextMapPropagator().extract({fields})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("route", ["/readyz", "/v2/health/ready"])
def test_a_probe_that_finds_the_service_starting_gets_no_line(route: str, kept: list[logging.LogRecord]) -> None:
    RequestLog(9, READINESS).write(request(route=route, status=503, code="not_ready"))
    assert kept == []

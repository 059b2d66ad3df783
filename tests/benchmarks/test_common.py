"""The benchmarks' helpers, on which every figure rests: they start, drive, compare and stop servers, or say why not."""

from __future__ import annotations

import os
import shutil
import sys
import time

import orjson
import pytest

from benchmarks import common, http_json
from benchmarks.common import Figures

REFUSES = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, status):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()
    def do_GET(self): self.answer(200)
    def do_POST(self): self.answer(500)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def failing_server(port: int) -> list[str]:
    return [sys.executable, "-c", REFUSES, str(port)]


def test_floor_takes_the_whole_body_and_answers_so_many_bytes() -> None:
    request = common.Request("/gathernd", b"x" * 3_000_000)
    with common.serving(http_json.SERVERS["bare"], environ={"BARE_BYTES": "1000"}) as port:
        assert len(common.post(port, request)) == 1000
        assert len(common.post(port, http_json.tiny())) == 1000
    assert common.get_status(port, "/readyz") is None


def test_naive_server_answers_the_first_example() -> None:
    with common.serving(http_json.SERVERS["naive"]) as port:
        answer = orjson.loads(common.post(port, http_json.tiny()))
    assert answer == {"output": {"dtype": "int32", "shape": [2], "values": [0, 3]}}


def test_server_that_ends_early_is_reported_with_its_last_words() -> None:
    with (
        pytest.raises(RuntimeError, match="no such luck"),
        common.serving(lambda _: [sys.executable, "-c", "raise SystemExit('no such luck')"]),
    ):
        pass


@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs the Debian package wrk")
def test_failing_answer_is_not_measured() -> None:
    with common.serving(failing_server) as port, pytest.raises(RuntimeError, match="answered 500"):
        common.wrk(port, http_json.tiny(), seconds=1)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs the Debian package wrk")
def test_wrk_counts_requests_and_errors() -> None:
    with common.serving(http_json.SERVERS["bare"]) as port:
        figures = common.wrk(port, http_json.tiny(), seconds=1)
    assert figures.requests > 0
    assert figures.errors == 0
    assert 0 < figures.p50 <= figures.p99
    with common.serving(failing_server) as port:
        figures = common.wrk(port, http_json.tiny(), seconds=1, warm=0)
    assert figures.errors == figures.requests > 0


def test_table_gives_each_rate_over_that_of_the_baseline() -> None:
    rows = {"ours": Figures(3000, 1, 2, 0, 10), "other": Figures(1200, 1, 2, 3, 10)}
    lines = common.table("title", rows, ["other"]).splitlines()
    assert lines[0] == "title"
    assert lines[2].split() == ["ours", "3,000.0", "1.00", "2.00", "0", "2.50"]
    assert lines[3].split() == ["other", "1,200.0", "1.00", "2.00", "3", "1.00"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_machine_line_names_cores_and_date() -> None:
    assert " cores, Python 3." in common.machine_line()


def test_processor_time_is_read_finer_than_the_ticks_of_a_clock() -> None:
    found = common.cpu_seconds(os.getpid())
    assert abs(found - time.process_time()) < 0.005
    assert len({common.cpu_seconds(os.getpid()) for _ in range(100)}) == 100

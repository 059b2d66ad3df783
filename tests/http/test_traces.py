"""Traces: spans of a request and its stages, in the caller's trace, sent to a collector; none where none is named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.telemetry.tracing import ENDPOINTS, NoTracing, start_tracing
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.raw import TINY
from tests.http.server import GATHERND, Server

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@dataclass
class Span:
    """A span as the collector got it, with what its service says of itself."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    begin: int
    end: int
    failed: bool
    attributes: dict[str, Any]
    service: dict[str, Any]


@dataclass
class Collector:
    """An OTLP collector on loopback that keeps what it gets."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def of(self, request_id: str) -> tuple[Span, list[Span]]:
        """The span of a request, once it is here, and its children."""

        def found() -> list[Span]:
            return [span for span in self.spans if span.attributes.get("gathernd.request_id") == request_id]

        until(found)
        (own,) = found()
        return own, [span for span in self.spans if span.parent == own.id]


def plain(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            message = ExportTraceServiceRequest.FromString(body)
            for resource in message.resource_spans:
                service = plain(resource.resource.attributes)
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        got.spans.append(
                            Span(
                                span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                                span.kind,
                                span.start_time_unix_nano, span.end_time_unix_nano, span.status.code == 2,
                                plain(span.attributes), service,
                            )
                        )  # fmt: skip
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    got = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, start: Start, collector: Collector) -> Iterator[Server]:
    flags = ["--otlp-endpoint", collector.url, "--workers", request.param, "--log-format", "json"]
    with start(*flags, "--loop-max-us", "50", environment=QUICK) as running:
        yield running


def ask(server: Server, mark: str, content: bytes = TINY, traceparent: str | None = SAMPLED, **options: Any) -> str:
    """Send a gather; the id under which its span is found."""
    request_id = f"{mark}-{id(server)}"
    headers = {"x-request-id": request_id} | ({"traceparent": traceparent} if traceparent else {})
    options.setdefault("path", "/gathernd")
    server.shared_client().request(
        options.pop("method", "POST"), options.pop("path"), content=content, headers=headers, **options
    )
    return request_id


def test_a_gather_has_a_span_in_its_callers_trace_with_one_for_each_stage(server: Server, collector: Collector) -> None:
    span, timings = collector.of(ask(server, "timings"))
    assert (span.trace, span.parent, span.name, span.kind) == (TRACE, PARENT, "POST /gathernd", 2)
    assert not span.failed
    expected = {
        "http.request.method": "POST", "http.route": "/gathernd", "http.response.status_code": 200,
        "url.scheme": "http", "network.protocol.version": "1.1", "gathernd.route": "loop",
        "http.request.body.size": len(TINY),
    }  # fmt: skip
    assert expected.items() <= span.attributes.items()
    assert [stage.name for stage in sorted(timings, key=lambda stage: stage.begin)] == [
        "parse", "queue", "kernel", "encode",
    ]  # fmt: skip
    moments = [moment for stage in sorted(timings, key=lambda one: one.begin) for moment in (stage.begin, stage.end)]
    assert moments == sorted(moments)
    assert span.begin == moments[0]
    assert abs(span.end - moments[-1]) < 1e6
    assert {stage.trace for stage in timings} == {TRACE}
    assert span.service["service.name"] == "gathernd"
    assert span.service["service.version"]


def test_no_span_has_what_was_sent(server: Server, collector: Collector) -> None:
    secret = "a-value-of-a-payload"
    span, _ = collector.of(ask(server, "secret", b'{"%b": 1}' % secret.encode(), path=f"/gathernd?key={secret}"))
    assert span.attributes["error.type"] == "invalid_field"
    assert secret not in str(span)


@pytest.mark.parametrize(
    ("mark", "path", "content", "status", "code", "failed"),
    [
        ("bad", "/gathernd", b"{", 400, "malformed_request", False),
        ("none", "/no/such/place", b"", 404, "not_found", False),
        ("tensor", "/gathernd", TINY.replace(b'{"dtype":"int8","shape":[2],"values":[7,8]}', b'{"tensor":"none"}'), 404,
         "tensor_not_found", False),
    ],
)  # fmt: skip
def test_an_error_is_in_its_span_and_its_log_line_has_the_trace(
    server: Server, collector: Collector, mark: str, path: str, content: bytes, status: int, code: str, failed: bool
) -> None:
    request_id = ask(server, mark, content, None, path=path)
    span, timings = collector.of(request_id)
    assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (status, code)
    assert (span.failed, span.parent) == (failed, "")
    assert span.name == ("POST" if mark == "none" else "POST /gathernd")
    assert "kernel" not in {stage.name for stage in timings}
    assert f'"trace_id":"{span.trace}"' in next(line for line in server.log_text().splitlines() if request_id in line)


def test_a_trace_that_is_not_sampled_is_not_sent(server: Server, collector: Collector) -> None:
    ask(server, "unsampled", traceparent=f"00-{TRACE}-{PARENT}-00")
    collector.of(ask(server, "after"))
    sleep(0.2)
    assert not [span for span in collector.spans if "unsampled" in span.attributes.get("gathernd.request_id", "")]


@pytest.mark.slow
def test_the_last_spans_are_sent_before_the_end(start: Start) -> None:
    with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "renamed"}
        with start(environment=variables | {"OTEL_BSP_SCHEDULE_DELAY": "60000"}) as server:
            request_id = ask(server, "last")
            assert collector.spans == []
        span, _ = collector.of(request_id)
        assert span.service["service.name"] == "renamed"


@pytest.mark.slow
def test_a_collector_that_is_not_there_harms_nobody(start: Start) -> None:
    patient = QUICK | {"OTEL_EXPORTER_OTLP_TIMEOUT": "100"}  # seconds for which the exporter tries again
    with start("--otlp-endpoint", "http://127.0.0.1:1", environment=patient) as server:
        ask(server, "lost")
        sleep(0.3)
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
        assert server.stop(within=60) == 0


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", ""])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(NoTracing, match="http://"):
        start_tracing(endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_traces_without_the_extra_end_the_start_with_a_reason(workers: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n")
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    }
    command = [GATHERND, "serve", "--port", "0", "--otlp-endpoint", "http://127.0.0.1:1", "--workers", workers]
    command += ["--store-dir", str(tmp_path / "store"), "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=variables, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2, done.stderr
    assert "pip install ./clients/python '.[otel]'" in done.stderr
    assert "Traceback" not in done.stderr

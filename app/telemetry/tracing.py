"""OpenTelemetry: a span for each request, and a child span for each stage, as part of the caller's trace.

Tracing is off unless an endpoint is set. This is decided at startup, so a service without an endpoint runs none of this
code. The SDK is installed with the extra `otel`, and reads its own variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_EXPORTER_OTLP_HEADERS and others).

Spans are created when a request has finished, from the times that Server-Timing needs anyway. One of the SDK's threads
sends them. If the collector does not keep up, spans are dropped; requests are never delayed. If a request calls shards,
its span is created before those calls, so that the shards' spans become its children.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from threading import Thread
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from app import __version__
from app.telemetry.served_request import STAGES, ServedRequest
from app.telemetry.trace_context import TRACE_FIELDS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
CLOSE_S: Final = 3.0
"""Seconds that a shutdown waits for the last spans to be sent."""
_PATH: Final = "/v1/traces"


class NoTracing(Exception):
    """Tracing is requested but not possible. The message says why."""


class Tracing:
    """Creates spans with a tracer of `provider`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._provider = provider
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("gathernd", __version__)

    def forwarded_lines(self, request: ServedRequest) -> bytes:
        """Return the header lines for a request to another service on behalf of `request`.

        These are the request's `forwarded_lines`, but with the request's own span as the parent. Starts that span if
        necessary.
        """
        lines = [line.partition(b": ") for line in request.forwarded_lines.split(b"\r\n")]
        if request.span is None:
            span = self._tracer.start_span(
                "", self._context({name: value for name, _, value in lines}), self._trace.SpanKind.SERVER,
                start_time=time_ns() - int((perf_counter() - request.start) * 1e9),
            )  # fmt: skip
            request.span = span
        else:
            span = request.span
        own: dict[str, str] = {}
        self._propagator.inject(own, self._trace.set_span_in_context(span))
        kept = [b"%b: %b\r\n" % (name, value) for name, _, value in lines if name not in (b"", *TRACE_FIELDS)]
        return b"".join([*kept, *(f"{name}: {value}\r\n".encode("latin-1") for name, value in own.items())])

    def record(self, context: ServedRequest, method: str, route: str, status: int, code: str | None, end: float) -> str:
        """Create the spans of a request that finished at `end`, in seconds of `perf_counter`. Returns the trace id."""
        trace = self._trace
        now = time_ns()

        def nanoseconds(time: float) -> int:
            return now - int((end - time) * 1e9)

        name = f"{method} {route}" if route != "other" else method
        attributes = _attributes(context, method, route, status, code)
        span: Span
        if context.span is None:
            kind, started = trace.SpanKind.SERVER, nanoseconds(context.start)
            span = self._tracer.start_span(name, self._context(context.headers), kind, attributes, start_time=started)
        else:
            span = context.span
            span.update_name(name)
            span.set_attributes(attributes)
        if span.is_recording():
            inside = trace.set_span_in_context(span)
            for stage, begin, finish in _stages(context, end):
                self._tracer.start_span(stage, inside, start_time=nanoseconds(begin)).end(nanoseconds(finish))
            if status >= 500:
                span.set_status(trace.StatusCode.ERROR)
        span.end(now)
        return f"{span.get_span_context().trace_id:032x}"

    def _context(self, headers: Mapping[bytes, bytes]) -> Any:
        """Return the trace context from the caller's header fields; it is empty if they contain no valid one."""
        if b"traceparent" not in headers:
            return self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        carrier = {name.decode(): headers[name].decode("latin-1") for name in TRACE_FIELDS if name in headers}
        return self._propagator.extract(carrier, self._trace.set_span_in_context(self._trace.INVALID_SPAN))

    def close(self) -> None:
        """Send the remaining spans, and wait at most CLOSE_S for the collector."""
        closing = Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _attributes(context: ServedRequest, method: str, route: str, status: int, code: str | None) -> dict[str, Any]:
    """Return the attributes of a request's span: those that OpenTelemetry defines for HTTP servers, and some of our
    own.
    """
    scope, exchange = context.scope, context.exchange
    attributes: dict[str, Any] = {
        "http.request.method": method,
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
        "gathernd.request_id": context.request_id,
        "http.request.body.size": exchange.received,
        "http.response.body.size": exchange.sent,
    }
    if route != "other":
        attributes["http.route"] = route
    if status:
        attributes["http.response.status_code"] = status
    if code is not None:
        attributes["error.type"] = code
    if context.route is not None:
        attributes["gathernd.route"] = context.route
    return attributes


def _stages(context: ServedRequest, end: float) -> Iterator[tuple[str, float, float]]:
    """Yield the name, start and end of each stage that the request reached."""
    begins = (context.start, context.parsed, context.kernel, context.kernel_end)
    for place, (name, begin) in enumerate(zip(STAGES, begins, strict=True)):
        if not begin:
            return
        following = begins[place + 1] if place < 3 else 0.0
        yield name, begin, following or end


def is_wanted(endpoint: str | None) -> bool:
    """Return whether `endpoint` or the environment requests tracing. Raises NoTracing if it is not possible."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if endpoint is None:
        off = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
        if off or not any(os.environ.get(name) for name in ENDPOINTS):
            return False
    elif not endpoint.startswith(("http://", "https://")):
        raise NoTracing(f"{endpoint!r} is not the URL of a collector: it begins with http:// or https://")
    try:
        import_module("opentelemetry.sdk.trace.export")
        import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise NoTracing(
            f"traces need the extra `otel` ({error.name} is missing): in a checkout, "
            "pip install ./clients/python '.[otel]'"
        ) from None
    return True


def start_tracing(endpoint: str | None) -> Tracing | None:
    """Start tracing to `endpoint`, or as set in the environment. Returns None if neither is set. Raises NoTracing."""
    if not is_wanted(endpoint):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    own = {"service.name": "gathernd", "service.version": __version__, "service.instance.id": str(uuid4())}
    try:
        exporter = OTLPSpanExporter(endpoint=None if endpoint is None else _with_path(endpoint))
        # Attributes from the environment override our own.
        resource = Resource.create().merge(Resource(own)).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:
        raise NoTracing(f"what the variables OTEL_* say cannot be used: {error}") from None
    return Tracing(provider)


def _with_path(endpoint: str) -> str:
    """Return the traces URL for a collector's base URL. A URL that already has the path is returned unchanged."""
    return endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH

"""Traces of calls of gRPC: a span for each, in the caller's trace."""

from __future__ import annotations

import pytest

from tests.grpc_api.conftest import StartGrpc
from tests.grpc_api.messages import Channel, example
from tests.http.test_traces import PARENT, QUICK, SAMPLED, TRACE, collecting


@pytest.mark.slow
def test_a_call_is_a_span_in_the_callers_trace(start_grpc: StartGrpc) -> None:
    with (
        collecting() as collector,
        start_grpc("--otlp-endpoint", collector.url, environment=QUICK) as server,
        Channel(server.address) as channel,
    ):
        channel.call("ModelInfer", example(), traceparent=SAMPLED, x_request_id="mine")
        span, stages = collector.of("mine")
    assert (span.trace, span.parent) == (TRACE, PARENT)
    assert span.name == "POST /inference.GRPCInferenceService/ModelInfer"
    assert [one.name for one in stages] == ["parse", "queue", "kernel", "encode"]
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["http.request.body.size"] > 50

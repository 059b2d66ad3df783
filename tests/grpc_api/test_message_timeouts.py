"""Calls whose message does not come are ended after GATHERND_DEADLINE, each after its own time."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from time import monotonic, sleep
from typing import Any

import grpc

from tests.grpc_api.conftest import StartGrpc
from tests.grpc_api.messages import Channel, example, judged

INFER = "/inference.GRPCInferenceService/ModelInfer"


def test_a_call_without_its_message_is_ended_in_time(start_grpc: StartGrpc) -> None:
    with start_grpc("--deadline", "1") as server, Channel(server.address) as channel:
        end = Event()

        def nothing() -> Iterator[bytes]:
            end.wait(20)
            yield from ()

        silent: Any = channel.channel.stream_unary(INFER)
        begun, calls = [], []
        for _ in range(3):
            begun.append(monotonic())
            calls.append(silent.future(nothing()))
            channel.call("ModelInfer", example())
            sleep(0.3)
        for start, call in zip(begun, calls, strict=True):
            error = call.exception(timeout=60)
            took = monotonic() - start
            assert isinstance(error, grpc.RpcError)
            status, problem = judged(error)
            assert (status, problem["code"]) == ("DEADLINE_EXCEEDED", "request_timeout")
            assert 0.9 < took < 60
        end.set()
        channel.call("ModelInfer", example())

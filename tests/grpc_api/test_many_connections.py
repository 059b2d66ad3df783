"""What keeps its place without a request: streams that wait, and connections without a call."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Event
from time import sleep
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from tests.grpc_api.conftest import StartGrpc
from tests.grpc_api.messages import Channel, example, output, pb

CALLS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def test_a_stream_that_waits_gives_its_place_to_a_call_the_longest_one_first(start_grpc: StartGrpc) -> None:
    more = Event()

    def requests() -> Iterator[Any]:
        yield example(id="1")
        more.wait(60)

    with start_grpc("--max-requests", str(CALLS)) as server, ExitStack() as stack:
        channels = [stack.enter_context(Channel(server.address)) for _ in range(CALLS + 1)]
        stack.callback(more.set)
        streams = []
        for channel in channels[:CALLS]:
            streams.append(channel.stub.ModelStreamInfer(requests(), timeout=60))
            assert next(streams[-1]).infer_response.id == "1"
        with pytest.raises(grpc.RpcError) as caught:  # one that has waited for a moment alone keeps its place
            channels[CALLS].call("ModelInfer", example())
        assert "calls are in progress" in str(caught.value.details())
        sleep(1.5)
        found = channels[CALLS].call("ModelInfer", example())
        assert output(found, np.float32).tolist() == [[2, 3], [0, 1]]
        with pytest.raises(grpc.RpcError) as caught:
            next(streams[0])
        assert caught.value.code().name == "UNAVAILABLE"
        assert "place was needed" in str(caught.value.details())
        for _ in range(3 * CALLS):  # there is room now: no other stream is ended
            channels[CALLS].call("ModelInfer", example())
        assert [stream.done() for stream in streams] == [True, False, False, False]


def test_calls_without_a_key_take_no_place_of_others(start_grpc: StartGrpc) -> None:
    """Watches, and calls whose message never comes, which are ended soon."""
    never = Event()

    def no_message() -> Iterator[bytes]:
        never.wait(60)
        yield b""

    with start_grpc("--max-requests", str(CALLS)) as server, ExitStack() as stack:
        channels = [stack.enter_context(Channel(server.address)) for _ in range(4)]
        stack.callback(never.set)
        first: Any = channels[0].channel
        watches = [first.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60) for _ in range(CALLS)]
        assert [next(watch) for watch in watches] == [b"\x08\x01"] * CALLS
        assert output(channels[3].call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]
        assert httpx.get(f"{server.http.url}/v2", trust_env=False, timeout=60).status_code == 200
        waiting = []
        for channel in channels[1:3]:
            live: Any = channel.channel
            method = live.stream_unary("/inference.GRPCInferenceService/ServerLive")
            waiting += [method.future(no_message(), timeout=60) for _ in range(CALLS - 1)]
        for _ in waiting:
            assert channels[3].call("ServerLive", pb.ServerLiveRequest()).live
        ended = [call.exception(timeout=60) for call in waiting]
        assert all(str(error.details()) == "the message did not come within 2 s" for error in ended)
        assert output(channels[3].call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]
        assert channels[3].call("ServerLive", pb.ServerLiveRequest()).live
        assert not any(watch.done() for watch in watches)


def test_connections_beyond_the_limit_are_closed_and_http_goes_on(start_grpc: StartGrpc) -> None:
    most = 3
    with start_grpc("--grpc-max-connections", str(most)) as server, ExitStack() as stack:
        kept = []
        for _ in range(4 * most):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            answered = b""
            with suppress(OSError):
                one.sendall(PREFACE)
                answered = one.recv(1)
            if answered:
                kept.append(one)
        assert len(kept) == most
        assert httpx.get(f"{server.http.url}/readyz", trust_env=False, timeout=60).status_code == 200
        kept[0].close()
        with Channel(server.address) as channel:  # its place is free again
            assert channel.stub.ServerLive(pb.ServerLiveRequest(), timeout=60, wait_for_ready=True).live

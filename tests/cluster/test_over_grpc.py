"""A router serves its tables over gRPC too: gathers and lookups, ids and traces handed on, ranges that are lost."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.running import Placed, routing
from tests.grpc_api.conftest import port_of
from tests.grpc_api.messages import Channel, output, request
from tests.http.conftest import Start

TABLE = np.arange(80, dtype=np.float32).reshape(20, 4)


@pytest.mark.slow
def test_rows_of_ranges_over_grpc(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    with ExitStack() as stack:
        second = ExitStack()
        stack.enter_context(second)
        running = [each.enter_context(start("--access-log")) for each in (stack, second)]
        placed = Placed(running)
        placed.add("rows", TABLE, ranges=4, replicas=1)
        placed.write(path)
        router = stack.enter_context(routing(start, path, "--grpc-port", "0"))
        channel = stack.enter_context(Channel(f"127.0.0.1:{port_of(router)}"))
        for typed in (False, True):
            some = np.array([[0], [-1], [7], [7]])
            answer = channel.call("ModelInfer", request({"indices": ("INT64", some)}, "rows", typed=typed))
            assert (output(answer, np.float32) == TABLE[some[:, 0]]).all()
            bags = {
                "0.indices": ("INT32", np.array([1, 19, 9], np.int32)),
                "0.offsets": ("INT32", np.array([0, 2], np.int32)),
            }
            asked = {"lookup": '{"features": [{"tensor": "rows", "pooling": "sum"}]}'}
            answer = channel.call("ModelInfer", request(bags, "lookup", typed=typed, parameters=asked))
            assert (output(answer, np.float32) == np.stack([TABLE[1] + TABLE[19], TABLE[9]])).all()
        wrong = request({"indices": ("INT64", np.array([[20]]))}, "rows")
        assert channel.refused("ModelInfer", wrong)[1]["code"] == "index_out_of_bounds"
        last = request({"indices": ("INT64", np.array([[19]]))}, "rows")
        channel.call("ModelInfer", last, x_request_id="handed-on-1")
        assert any("handed-on-1" in shard.log_text() for shard in running)
        second.close()
        status, problem = channel.refused("ModelInfer", last)
        assert (status, problem["code"]) == ("UNAVAILABLE", "shard_unavailable")
        assert problem["ranges"][0]["stop"] == len(TABLE)

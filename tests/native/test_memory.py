"""The memory bound: a binary request takes its own bytes, those of its answer, and a constant."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gathernd import Client
from tests.http.server import Server

MIB = 1 << 20
CONSTANT = 24 * MIB
"""What the service may hold beside the bytes of the request and of the answer, buffers of the network among it."""
SIZES = [pytest.param(64, id="64 MiB"), pytest.param(1024, id="1 GiB", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def large(start: Callable[..., Any]) -> Iterator[Server]:
    """A server that may take a whole GiB of data, warmed up by some requests."""
    with start("--memory-budget", "4GiB", "--max-body-bytes", "1200MiB", "--body-timeout", "60") as server:
        with Client(server.url) as client:
            for _ in range(5):
                client.gathernd(np.zeros((256, 1024), np.float32), np.zeros((256, 1), np.int64))
        yield server


def work(size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """`size` MiB of data, and indices that pick all of it, back to front."""
    data = np.empty((size, MIB), np.uint8)
    data[:] = np.arange(size, dtype=np.uint32).astype(np.uint8)[:, None]
    data[:, 5] = 255
    return data, np.arange(size)[::-1, None]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.timeout(600)
def test_request_and_answer_take_their_bytes_and_a_constant(large: Server, size: int) -> None:
    data, indices = work(size)
    before = large.forget_peak()
    with Client(large.url, timeout=300) as client:
        found = client.gathernd(data, indices)
    grown = large.peak() - before
    assert np.array_equal(found, data[::-1])
    assert grown <= 2 * size * MIB + CONSTANT, f"{grown / MIB:.0f} MiB for {size} MiB in and {size} MiB out"
    assert grown >= size * MIB, "the measurement does not see the request"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.timeout(600)
def test_an_unaligned_tensor_costs_one_copy_of_it(large: Server, size: int) -> None:
    data, _ = work(size)
    rows = data.reshape(-1).view(np.float32).reshape(size, -1)
    header = {
        "data": {"dtype": "F32", "shape": rows.shape, "data_offsets": [0, rows.nbytes]},
        "indices": {"dtype": "I64", "shape": [1, 1], "data_offsets": [rows.nbytes, rows.nbytes + 8]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 4 + 1)  # the items start one byte behind a multiple of four
    before = large.forget_peak()
    with socket.create_connection(("127.0.0.1", large.port), 300) as connection:
        connection.sendall(
            b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (8 + len(text) + rows.nbytes + 8)
        )
        connection.sendall(len(text).to_bytes(8, "little") + text)
        connection.sendall(rows.view(np.uint8).data)
        connection.sendall((size - 1).to_bytes(8, "little"))
        answer = b"".join(iter(lambda: connection.recv(MIB), b""))
    grown = large.peak() - before
    assert answer.endswith(rows[-1].tobytes())
    assert grown <= (2 * size + 1) * MIB + CONSTANT, f"{grown / MIB:.0f} MiB for {size} MiB in, its copy and 1 MiB out"


def test_answers_that_nobody_reads_are_charged_until_they_are_gone(start: Callable[..., Any]) -> None:
    size, fit = 32, 4
    data, indices = work(size)
    header = json.dumps({"indices": {"dtype": "I64", "shape": [size, 1], "data_offsets": [0, size * 8]}}).encode()
    body = len(header).to_bytes(8, "little") + header + indices.tobytes()
    asked = (
        b"POST /gathernd?tensor=table HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    budget = (size * fit + 1) * MIB
    with start("--memory-budget", str(budget)) as server, Client(server.url, timeout=60) as client:
        client.put("table", data)
        assert np.array_equal(client.gathernd("table", indices), data[::-1])
        before = server.forget_peak()
        with ExitStack() as connections:
            statuses = []
            for _ in range(fit + 3):
                connection = connections.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
                connection.sendall(asked)
                statuses.append(connection.recv(12))
            assert statuses == [b"HTTP/1.1 200"] * fit + [b"HTTP/1.1 503"] * 3
            assert server.peak() - before <= budget + CONSTANT
        assert np.array_equal(client.gathernd("table", indices), data[::-1])

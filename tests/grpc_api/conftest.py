from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import pytest

from tests.http.conftest import Start, start
from tests.http.server import Server

__all__ = ["start"]

_LISTENS = re.compile(r"gRPC on [^ ]*?:([0-9]+)")


@dataclass
class GrpcServer:
    """A running server, and where it takes calls."""

    http: Server
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


def port_of(server: Server) -> int:
    """The port of gRPC, as the log says it."""
    end = monotonic() + 60
    while (found := _LISTENS.search(server.log_text())) is None:
        assert monotonic() < end, server.log_text()
        sleep(0.02)
    return int(found[1])


StartGrpc = Callable[..., AbstractContextManager[GrpcServer]]


@pytest.fixture(scope="session")
def start_grpc(start: Start) -> StartGrpc:
    """Start a server with gRPC: `with start_grpc("--deadline", "1") as server`."""

    @contextmanager
    def begin(*flags: str, **options: Any) -> Iterator[GrpcServer]:
        with start("--grpc-port", "0", *flags, **options) as server:
            yield GrpcServer(server, port_of(server))

    return begin


@pytest.fixture(scope="session")
def grpc_server(start_grpc: StartGrpc) -> Iterator[GrpcServer]:
    with start_grpc("--max-output-bytes", "8MiB") as server:
        yield server


def becomes(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether the condition holds in time."""
    end = monotonic() + seconds
    while not (met := condition()) and monotonic() < end:
        sleep(0.05)
    return met


def used(server: Server) -> float:
    """Bytes of the memory budget that are in use."""
    with server.client() as client:
        text = client.get("/metrics").text
    return float(text.split("\ngathernd_memory_used_bytes ")[1].split()[0])


def put_row(server: Server) -> None:
    """Upload the tensor `row`, of which answers of many MiB are made."""
    with server.client() as client:
        headers = {"content-type": "application/octet-stream"}
        put = client.put("/tensors/row?dtype=int8&shape=1,65536", content=bytes(1 << 16), headers=headers)
        assert put.status_code == 201

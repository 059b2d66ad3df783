"""A running service that cases are asked of, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.conformance.transports import Target
from tests.grpc_api.conftest import port_of
from tests.grpc_api.messages import Channel
from tests.http import server as native
from tests.oip import bodies


def check_any(answer: httpx.Response) -> None:
    """What holds for every answer over HTTP."""
    if answer.request.url.path.startswith("/v2/"):
        bodies.check_answer(answer)
    else:
        native.check_answer(answer)


@contextmanager
def asking(server: native.Server) -> Iterator[Target]:
    hooks: dict[str, list[Any]] = {"response": [check_any]}
    with (
        httpx.Client(base_url=server.url, trust_env=False, timeout=60, event_hooks=hooks) as client,
        Channel(f"127.0.0.1:{port_of(server)}") as channel,
    ):
        yield Target(client, channel)

"""Aliases of many tables moved together under a lookup load over two workers, as a publisher and its readers see it."""

from __future__ import annotations

from threading import Event

import httpx
import numpy as np

from tests.conftest import SOAK
from tests.http.conftest import Start
from tests.http.server import TWO_WORKERS
from tests.http.tensors import put_raw
from tests.workers.load import connected, one_of_each, request
from tests.workers.releases import (
    LOOK_UP,
    NAMES,
    VERSIONS,
    Moves,
    ReleaseReader,
    all_named,
    move_all,
    reading,
    releases_of,
    version_after,
)

RELEASES = 1000 if SOAK else 5
READERS = 4


def test_a_lookup_of_all_tables_never_mixes_the_releases_that_aliases_move_between(start: Start) -> None:
    with (
        start(*TWO_WORKERS, "--keep-versions", "3", "--device", "cpu") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        for name in NAMES:
            for number in VERSIONS:
                put_raw(client, name, np.full((1, 1), number, np.float32))
        stop, moves = Event(), Moves()
        assert client.put("/aliases", content=all_named(version_after(1))).status_code == 200
        readers = [ReleaseReader(server.port, stop, moves) for _ in range(READERS)]
        with connected(server.port, 16) as opened, reading(readers, stop):
            checks = one_of_each(opened)
            assert len(checks) == 2, "both workers are asked"
            for move in range(RELEASES):
                mover = checks[move % 2]
                release = move_all(moves, lambda body: mover.ask(request("PUT", "/aliases", body)).status)  # noqa: B023
                for connection in checks:  # once it is acknowledged, every worker serves it
                    assert releases_of(connection.ask(LOOK_UP).body) == [release] * len(NAMES), f"after move {move}"
        for reader in readers:
            assert (reader.failures, reader.mixed, reader.stale) == ([], [], [])
            assert reader.read <= set(VERSIONS)

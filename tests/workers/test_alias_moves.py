"""An alias moved a thousand times under a lookup load over two workers, as a publisher and its readers see it."""

from __future__ import annotations

import json
from threading import Event

import httpx
import numpy as np
import pytest

from tests.conftest import SOAK
from tests.http.server import TWO_WORKERS
from tests.http.tensors import put_raw
from tests.workers.conftest import Start
from tests.workers.load import connected, one_of_each, request
from tests.workers.releases import (
    LOOK_UP,
    NAMES,
    VERSIONS,
    ConnectedReader,
    Moves,
    ReleaseReader,
    all_named,
    move_all,
    reading,
    releases_of,
    version_after,
)

MOVES = 1000 if SOAK else 75
RELEASES = 1000 if SOAK else 5
READERS = 4
BODY = json.dumps(
    {"data": {"tensor": "live"}, "indices": {"dtype": "int64", "shape": [2, 1], "values": [0, 1]}}
).encode()


class Reader(ConnectedReader):
    """Looks up through the alias, again and again; what it read, in order."""

    def __init__(self, port: int, stop: Event, moves: Moves) -> None:
        super().__init__(port, stop, moves)
        self.judged = 0
        self.read: list[tuple[int, float, str]] = []
        self.workers: set[str] = set()

    def run(self) -> None:
        while not self.stop.is_set():
            before = self.moves.acknowledged
            answer = self.connection.ask(request(path="/gathernd", body=BODY))
            allowed = self.moves.allowed(before, self.moves.begun)
            self.workers.add(answer.worker)
            if answer.status != 200:
                self.failures.append(answer.body.decode())
                continue
            found = json.loads(answer.body)
            self.read.append((found["version"], found["output"]["values"][0], found["data_etag"]))
            self.judged += len(allowed) < len(VERSIONS)
            if found["version"] not in allowed:
                self.stale.append(f"{found['version']} after {before} moves, which is none of {allowed}")


@pytest.mark.slow
def test_every_answer_is_of_one_version_and_never_of_an_older_one_than_was_acknowledged(start: Start) -> None:
    with (
        start(*TWO_WORKERS, "--keep-versions", "3", "--device", "cpu") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
        connected(server.port, 16) as opened,
    ):
        etags = {
            number: put_raw(client, "items", np.full((2, 2), number, np.float32)).headers["etag"] for number in VERSIONS
        }
        client.put("/aliases/live", json={"tensor": "items@1"})
        stop, moves = Event(), Moves()
        readers = [Reader(server.port, stop, moves) for _ in range(READERS)]
        checks = one_of_each(opened)
        assert len(checks) == 2, "both workers are asked"
        with reading(readers, stop):
            for move in range(MOVES):
                number = version_after(moves.acknowledged + 1)
                mover, other = checks[move % 2], checks[(move + 1) % 2]
                body = json.dumps({"tensor": f"items@{number}"}).encode()
                moves.begun += 1
                moved = mover.ask(request("PUT", "/aliases/live", body))
                moves.acknowledged += 1
                assert moved.status == 200, moved.body
                # Once it is acknowledged, every worker serves it, on this connection and on every other one.
                for connection in (mover, other, mover):
                    found = connection.ask(request(path="/gathernd", body=BODY))
                    assert json.loads(found.body)["version"] == number, f"after move {move}"
        for reader in readers:
            assert reader.failures == []
            assert reader.stale == []
            assert reader.judged > 0
            assert reader.read
            for version, value, etag in reader.read:
                assert value == version
                assert etag == etags[version]
        assert {version for reader in readers for version, _, _ in reader.read} == set(VERSIONS)


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

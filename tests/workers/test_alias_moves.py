"""An alias moved a thousand times under a lookup load over two workers, as a publisher and its readers see it."""

from __future__ import annotations

import json
from threading import Event, Thread

import httpx
import numpy as np
import pytest

from tests.conftest import SOAK, TEST_ALL
from tests.http.server import TWO_WORKERS
from tests.http.tensors import put_raw
from tests.workers.conftest import Start
from tests.workers.load import Connection, connected, request

MOVES = 1000 if SOAK or TEST_ALL else 75
READERS = 4
VERSIONS = (1, 2, 3)
READY = request("GET", "/readyz", b"")
BODY = json.dumps(
    {"data": {"tensor": "live"}, "indices": {"dtype": "int64", "shape": [2, 1], "values": [0, 1]}}
).encode()


class Moves:
    """How many moves of the alias have begun, and how many were acknowledged; the first one makes it."""

    def __init__(self) -> None:
        self.begun = self.acknowledged = 1

    def allowed(self, acknowledged: int, begun: int) -> set[int]:
        """The versions of answers to requests that came after `acknowledged` moves and were answered after `begun`."""
        return {version_after(move) for move in range(acknowledged, begun + 1)}


def version_after(moves: int) -> int:
    """The version that the alias names after so many moves."""
    return VERSIONS[(moves - 1) % len(VERSIONS)]


class Reader(Thread):
    """Looks up through the alias on one connection, again and again; what it read, in order."""

    def __init__(self, port: int, stop: Event, moves: Moves) -> None:
        super().__init__()
        self.connection = Connection(port)
        self.stop = stop
        self.moves = moves
        self.stale: list[str] = []
        self.judged = 0
        self.read: list[tuple[int, float, str]] = []
        self.workers: set[str] = set()
        self.failures: list[str] = []

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


def one_of_each(opened: list[Connection]) -> list[Connection]:
    """Of these connections one to each worker."""
    return list({connection.ask(READY).worker: connection for connection in opened}.values())


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
        for reader in readers:
            reader.start()
        checks = one_of_each(opened)
        assert len(checks) == 2, "both workers are asked"
        try:
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
        finally:
            stop.set()
            for reader in readers:
                reader.join()
                reader.connection.close()
        for reader in readers:
            assert reader.failures == []
            assert reader.stale == []
            assert reader.judged > 0
            assert reader.read
            for version, value, etag in reader.read:
                assert value == version
                assert etag == etags[version]
        assert {version for reader in readers for version, _, _ in reader.read} == set(VERSIONS)

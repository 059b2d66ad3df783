"""Releases of many tables, which aliases move between together, and readers that look all of them up at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from tests.workers.load import Connection, request

TABLES = 26
VERSIONS = (1, 2, 3)
NAMES = [f"t{number}" for number in range(TABLES)]
ONE_ROW = {"dtype": "int64", "shape": [1], "values": [0]}
LOOK_UPS = [
    ("/lookup", {"features": [{"tensor": f"{name}-live", "indices": ONE_ROW} for name in NAMES]}),
    ("/v2/models/lookup/infer", {
        "inputs": [
            {"name": f"{number}.indices", "datatype": "INT64", "shape": [1], "data": [0]} for number in range(TABLES)
        ],
        "parameters": {"lookup": json.dumps({"features": [{"tensor": f"{name}-live"} for name in NAMES]})},
    }),
]  # fmt: skip
"""A lookup of all tables, as JSON and by the inference protocol."""
LOOK_UP = request(path=LOOK_UPS[0][0], body=json.dumps(LOOK_UPS[0][1]).encode())


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


def releases_of(answer: bytes) -> list[float]:
    """The release of each table of a lookup: its one row is full of it."""
    found = json.loads(answer)
    values: list[float] = found["output"]["values"] if "output" in found else found["outputs"][0]["data"]
    return values


class ReleaseReader(Thread):
    """Looks up all tables on a connection of its own, again and again until `stop` is set, and once at least.

    `failures` has the answers that are errors, `mixed` those of several releases, and `stale` what was read though it
    was not there meanwhile.
    """

    def __init__(self, port: int, stop: Event, moves: Moves) -> None:
        super().__init__()
        self.connection = Connection(port)
        self.stop = stop
        self.moves = moves
        self.failures: list[str] = []
        self.stale: list[str] = []
        self.mixed: list[str] = []
        self.read: set[float] = set()

    def run(self) -> None:
        sent = [request(path=path, body=json.dumps(body).encode()) for path, body in LOOK_UPS]
        while True:
            for one in sent:
                before = self.moves.acknowledged
                answer = self.connection.ask(one)
                allowed = self.moves.allowed(before, self.moves.begun)
                if answer.status != 200:
                    self.failures.append(answer.body.decode())
                    continue
                found = set(releases_of(answer.body))
                self.read |= found
                if len(found) != 1:
                    self.mixed.append(f"{sorted(found)} after {before} moves")
                if not found <= allowed:
                    self.stale.append(f"{sorted(found)} after {before} moves, when {sorted(allowed)} were there")
            if self.stop.is_set():
                return


@contextmanager
def reading(readers: Sequence[ReleaseReader], stop: Event) -> Iterator[None]:
    """The readers read meanwhile; at the end they are stopped, and their connections closed."""
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        stop.set()
        for reader in readers:
            reader.join()
            reader.connection.close()


def all_named(release: int) -> bytes:
    """The body that has the aliases of all tables name a release."""
    return json.dumps({"aliases": {f"{name}-live": f"{name}@{release}" for name in NAMES}}).encode()


def move_all(moves: Moves, ask: Callable[[bytes], int]) -> int:
    """Move the aliases of all tables to the next release; `ask` sends the body and gives the status."""
    release = version_after(moves.acknowledged + 1)
    moves.begun += 1
    status = ask(all_named(release))
    moves.acknowledged += 1
    assert status == 200
    return release

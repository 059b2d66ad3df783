"""Clients that add 1 to cells and gather cells all the time, and what they know of the table.

Row 0 of each range has the hot cell to which every add of the range goes, so that records depend on each other. Every
add also has a cell of its own in each range that it touches: in the end it holds 1 if the add was made, 2 if twice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Lock, Thread
from typing import Any

import httpx
import numpy as np

from tests.cluster.chaos.processes import RANGES
from tests.http.forms import int64
from tests.parity.items import Rng

TABLE = "counts"
WIDTH = 64
RANGE_ROWS = 10_000
ROWS = RANGES * RANGE_ROWS
ADDERS, READERS = 4, 2
GIVE_UP_S = 90.0
"""Seconds for which an add is sent again."""
KEPT = httpx.Limits(keepalive_expiry=None)
Cell = tuple[int, int]


@dataclass
class Add:
    """One keyed add of 1 to `cells`, the hot one and its own in each of `ranges`."""

    key: str
    ranges: tuple[int, ...]
    cells: tuple[Cell, ...]
    is_acknowledged: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        flat = [each for cell in self.cells for each in cell]
        updates = {"dtype": "int32", "shape": [len(self.cells)], "values": [1] * len(self.cells)}
        return {"indices": int64([len(self.cells), 2], flat), "updates": updates, "reduction": "add"}


def hot(number: int) -> Cell:
    """The cell of a range that each of its adds changes."""
    return number * RANGE_ROWS, 0


@dataclass
class Told:
    """What clients were told: every add, when a range acknowledged one, and what must not have been."""

    adds: list[Add] = field(default_factory=list)
    acknowledged: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """When the requests that were answered with success began and ended, by ranges, if they touched only one."""
    gathers: list[float] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrongs: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def wrong(self, text: str) -> None:
        """Keep what must not be."""
        with self.lock:
            self.wrongs.append(f"{time.strftime('%H:%M:%S')} {text}")


class Session:
    """One connection to one router. `highest` is the most that it has seen of each hot cell."""

    def __init__(self, url: str, headers: Mapping[str, str], told: Told) -> None:
        self._client = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=90, limits=KEPT)
        self._told = told
        self._stream: Any = None
        self.highest: dict[int, int] = {}

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        """Ask. A connection that is another one has seen nothing."""
        answer = self._client.post(path, json=body, headers=headers)
        stream = answer.extensions["network_stream"]
        if stream is not self._stream:
            self._stream, self.highest = stream, {}
        return answer

    def gather(self, cells: Sequence[Cell]) -> list[int] | None:
        """The hot cells, which must not go back, and `cells`; None if it failed, which is kept as wrong."""
        asked = [*map(hot, range(RANGES)), *cells]
        indices = int64([len(asked), 2], [each for cell in asked for each in cell])
        begun = time.monotonic()
        try:
            answer = self.post("/gathernd", {"data": {"tensor": TABLE}, "indices": indices})
        except httpx.TransportError as error:
            self._told.wrong(f"a gather failed after {time.monotonic() - begun:.1f} s: {error!r}")
            return None
        self._told.gathers.append(time.monotonic() - begun)
        if not answer.is_success:
            self._told.wrong(f"a gather failed after {time.monotonic() - begun:.1f} s: {answer.text}")
            return None
        found: list[int] = answer.json()["output"]["values"]
        for number in range(RANGES):
            before = self.highest.get(number, 0)
            if found[number] < before:
                self._told.wrong(f"a connection saw {before} and then {found[number]} in range {number}")
            self.highest[number] = max(before, found[number])
        return found[RANGES:]

    def close(self) -> None:
        self._client.close()


class Load:
    """Threads that add and gather until `end`; `told` is what they were told."""

    def __init__(self, urls: Sequence[str], headers: Mapping[str, str], seed: int) -> None:
        self.told = Told()
        self._urls, self._headers = urls, headers
        self._over = Event()
        work = [(self._add, number) for number in range(ADDERS)] + [(self._read, number) for number in range(READERS)]
        self._threads = [
            Thread(target=run, args=(number, np.random.default_rng([seed, place])), daemon=True)
            for place, (run, number) in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop, and wait until nothing is under way."""
        self._over.set()
        for thread in self._threads:
            thread.join(GIVE_UP_S + 100)
            assert not thread.is_alive()

    def _add(self, number: int, rng: Rng) -> None:
        """Add all the time, mostly to the range of this number."""
        sessions = [Session(url, self._headers, self.told) for url in self._urls]
        last: Add | None = None
        for turn in count():
            if self._over.is_set():
                break
            ranges = {number} if rng.random() < 0.8 else {number, int(rng.integers(RANGES))}
            add = self._made(number, turn, tuple(sorted(ranges)))
            try:
                self._send(add, sessions, rng)
                if last is not None and last.is_acknowledged and rng.random() < 0.05:
                    self._send(last, sessions, rng)
            except Exception as error:
                self.told.wrong(f"an adder ended: {error!r}")
                raise
            last = add
        for session in sessions:
            session.close()

    def _made(self, number: int, turn: int, ranges: tuple[int, ...]) -> Add:
        row, column = divmod(turn * ADDERS + number + WIDTH, WIDTH)
        own = [(each * RANGE_ROWS + row % RANGE_ROWS, column) for each in ranges]
        assert row < RANGE_ROWS
        add = Add(f"add-{number}-{turn}", ranges, (*map(hot, ranges), *own))
        self.told.adds.append(add)
        return add

    def _send(self, add: Add, sessions: Sequence[Session], rng: Rng) -> None:
        """Send an add, after a failure again to any router; a tenth of them is given up at the first failure."""
        end = time.monotonic() + (GIVE_UP_S if rng.random() < 0.9 else 0)
        session = sessions[int(rng.integers(len(sessions)))]
        while True:
            begun = time.monotonic()
            try:
                answer = session.post(f"/tensors/{TABLE}/scatter", add.body, **{"idempotency-key": add.key})
            except httpx.TransportError as error:
                refusal = type(error).__name__
            else:
                if answer.is_success:
                    self._acknowledged(add, session, begun, rng)
                    return
                refusal = answer.json()["code"]
                if answer.status_code != 503:
                    self.told.wrong(f"{add.key}: {answer.text}")
            self.told.refusals[refusal] += 1
            if time.monotonic() > end:
                return
            self._over.wait(0.1)
            session = sessions[int(rng.integers(len(sessions)))]

    def _acknowledged(self, add: Add, session: Session, begun: float, rng: Rng) -> None:
        add.is_acknowledged = True
        if len(add.ranges) == 1:
            self.told.acknowledged[add.ranges[0]].append((begun, time.monotonic()))
        if rng.random() < 0.2:
            found = session.gather(add.cells)
            if found is not None and (min(found[: len(add.ranges)]) < 1 or set(found[len(add.ranges) :]) != {1}):
                self.told.wrong(f"{add.key} was acknowledged on this connection, which sees {found}")

    def _read(self, number: int, rng: Rng) -> None:
        """Gather all the time on one connection."""
        session = Session(self._urls[number % len(self._urls)], self._headers, self.told)
        while not self._over.wait(0.01):
            rows = rng.integers(1, RANGE_ROWS, 64) + RANGE_ROWS * rng.integers(0, RANGES, 64)
            columns = rng.integers(0, WIDTH, 64)
            try:
                found = session.gather(list(zip(rows.tolist(), columns.tolist(), strict=True)))
            except Exception as error:
                self.told.wrong(f"a reader ended: {error!r}")
                raise
            if found is not None and not set(found) <= {0, 1}:
                self.told.wrong(f"a cell that one add changes holds {max(found)}")
        session.close()

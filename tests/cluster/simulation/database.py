"""The simulated database: linearizable, with leases and watches; and one process's client of it.

What goes through is late, lost or cut off, as all else; what the database has done stays done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from app.cluster.catalogue.records import Catalogue, Change, apply_writes, to_json
from app.errors import GatherError
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.world import Process, World

MACHINE = "database"
ANSWER_AFTER = 1.0
"""How long a client waits for an answer."""
CHANGE_DEADLINE = 8.0
LOOK_EVERY = 4.0
"""How often a client reads the catalogue if no watch tells it of a newer one."""
Found = TypeVar("Found")
Transition = Callable[[Catalogue], Change | None]


@dataclass
class Lease:
    """What a process has to renew before `until`."""

    seconds: float
    until: float
    keys: set[str] = field(default_factory=set)


class Database:
    """The catalogue at each revision, which `checks` judges as it is written."""

    def __init__(self, world: World, checks: Checks, lease_seconds: float) -> None:
        self._world = world
        self._checks = checks
        self._lease_seconds = lease_seconds
        self._watching: list[DatabaseClient] = []
        self.loss = 0.0
        self.bindings: dict[str, str] = {}
        """The content that each Idempotency-Key is bound to."""

    @property
    def newest(self) -> Catalogue:
        """The catalogue as it is now."""
        return self._checks.latest

    def ask(self, asker: Process, work: Callable[[], Found], done: Callable[[Found], None]) -> None:
        """Do `work` when the request arrives, and `done` when its answer does. Either may be lost."""

        def arrive() -> None:
            if not self._world.is_cut(asker.machine, MACHINE):
                found = work()
                self._send(asker, done, found)

        if not self._is_lost():
            self._world.after(self._world.delay(), arrive)

    def _send(self, to: Process, do: Callable[..., None], *arguments: Any) -> None:
        def arrive() -> None:
            if not self._world.is_cut(to.machine, MACHINE):
                to.run(do, *arguments)

        if not self._is_lost():
            self._world.after(self._world.delay(), arrive)

    def _is_lost(self) -> bool:
        return self._world.random.random() < self.loss

    # What it does when a request arrives

    def commit(self, change: Change, at: Catalogue, lease: Lease | None) -> bool:
        """Make a change, unless what it was judged by has changed."""
        now = self.newest
        if any(at.revisions.get(key, 0) != now.revisions.get(key, 0) for key in {*change.puts, *change.unchanged}):
            return False
        for beginning in change.no_newer:
            if any(at.revision < written for key, written in now.revisions.items() if key.startswith(beginning)):
                return False
        if change.leased and (lease is None or lease.until <= self._world.now):
            return False
        self._write(change)
        if lease is not None:
            lease.keys |= change.leased
        return True

    def _write(self, change: Change) -> None:
        revision = self.newest.revision + 1
        written = {key: None if one is None else (to_json(one), revision) for key, one in change.puts.items()}
        self._checks.committed(apply_writes(self.newest, revision, written), change)
        for client in self._watching:
            if client.process.alive:
                self._send(client.process, client.newer, self.newest)

    def grant(self) -> Lease:
        """A lease; its keys go when it has not been renewed in time."""
        lease = Lease(self._lease_seconds, self._world.now + self._lease_seconds)
        self._world.after(lease.seconds, self._expire, lease)
        return lease

    def renew(self, lease: Lease) -> bool:
        """Whether the lease is still there; it then is for its whole time again."""
        if lease.until <= self._world.now:
            return False
        lease.until = self._world.now + lease.seconds
        return True

    def _expire(self, lease: Lease) -> None:
        if lease.until > self._world.now:
            self._world.after(lease.until - self._world.now, self._expire, lease)
        elif gone := {key: None for key in sorted(lease.keys) if key in self.newest.revisions}:
            self._write(Change(gone))

    def watch(self, client: DatabaseClient) -> None:
        """Tell a client of each newer catalogue."""
        self._watching = [one for one in self._watching if one.process.alive]
        self._watching.append(client)


class DatabaseClient:
    """One process's, as `CatalogueClient`: `take` is called with each newer catalogue."""

    def __init__(self, database: Database, process: Process, take: Callable[[Catalogue], None]) -> None:
        self.process = process
        self.catalogue = Catalogue()
        self.lease: Lease | None = None
        self.confirmed = float("-inf")
        """When the last read of the catalogue began that was answered."""
        self._database = database
        self._take = take
        database.watch(self)
        process.every(
            LOOK_EVERY,
            lambda: process.start(
                self.refresh,
            ),
        )
        process.every(
            database._lease_seconds / 3,
            lambda: process.start(
                self._renew,
            ),
        )

    def newer(self, found: Catalogue) -> None:
        """A catalogue has come; those that come late are not heeded."""
        if found.revision > self.catalogue.revision:
            self.catalogue = found
            self._take(found)

    async def ask(self, work: Callable[[], Found]) -> Found | None:
        """Ask the database; None if it does not answer in time."""
        found: asyncio.Future[Found | None] = self.process.loop.create_future()

        def over(answer: Found | None) -> None:
            if not found.done():
                found.set_result(answer)

        self._database.ask(self.process, work, over)
        self.process.after(ANSWER_AFTER, over, None)
        return await found

    async def refresh(self) -> Catalogue | None:
        """Read the catalogue, as it is no earlier than now; None if the database does not answer."""
        begun = self.process.world.now
        found = await self.ask(lambda: self._database.newest)
        if found is None:
            return None
        self.confirmed = max(self.confirmed, begun)
        self.newer(found)
        return self.catalogue

    async def bind(self, key: str, content_id: str) -> str | None:
        """Bind a key to a content, unless it is bound. Returns what it is bound to, None if that is not known."""
        return await self.ask(lambda: self._database.bindings.setdefault(key, content_id))

    async def transact(self, transition: Transition) -> str:
        """Make the change that `transition` says. Returns an error's code, "" if it is made."""
        end = self.process.world.now + CHANGE_DEADLINE
        is_made = False
        while self.process.world.now < end:
            catalogue = await self.refresh()
            if catalogue is None:
                continue
            try:
                change = None if is_made else transition(catalogue)
            except GatherError as refused:
                return refused.code
            if change is None or not change.puts:
                return ""
            if change.leased and self.lease is None:
                self.lease = await self.ask(self._database.grant)
            lease = self.lease if change.leased else None
            is_made = bool(await self.ask(partial(self._database.commit, change, catalogue, lease)))
        return "shard_unavailable"

    async def _renew(self) -> None:
        lease = self.lease
        if lease is not None and await self.ask(partial(self._database.renew, lease)) is False and self.lease is lease:
            self.lease = None

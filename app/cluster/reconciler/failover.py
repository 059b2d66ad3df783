"""Failover of open ranges.

Failover runs concurrently with the rounds, because a round takes seconds and a range without a primary refuses
scatters.

A shard counts as lost when its lease has expired, 15 s after the last renewal. The shard counts as lost earlier if its
process is gone, that is, if its address has refused every connection for GONE_AFTER_S seconds. Only a running machine
on which nothing listens at that port refuses connections. A shard that is slow, suspended or cut off does not refuse
them, and keeps its ranges until its lease expires.

Correctness does not depend on this decision. A shard that is wrongly considered lost is fenced like any other: the new
primary has every acknowledged record and refuses older epochs. A wrong decision costs one change of primary and one
catch-up. The lease is not revoked, so a shard that merely restarts causes no copying of rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from app.cluster.catalogue.client import Transition
from app.cluster.catalogue.ranges import fail_over
from app.cluster.catalogue.records import Catalogue, Change
from app.cluster.reconciler.catalogue_calls import CatalogueCalls
from app.cluster.reconciler.shard_calls import ShardCalls
from app.errors import GatherError

PROBE_S: Final = 0.5
"""Seconds between connection attempts to the shards of open ranges."""
GONE_AFTER_S: Final = 1.0
logger = logging.getLogger("gathernd")


class Failover:
    """Assign new primaries to ranges while its reconciler is the leader.

    `is_leader` determines from a catalogue whether the reconciler is the leader.
    """

    def __init__(self, catalogues: CatalogueCalls, shards: ShardCalls, is_leader: Callable[[Catalogue], bool]) -> None:
        self._catalogues = catalogues
        self._shards = shards
        self._is_leader = is_leader
        self._wake = asyncio.Event()
        self._refused_since: dict[str, float] = {}
        """When each shard began to refuse every connection."""
        self._gone: frozenset[str] = frozenset()
        self.count = 0
        """Number of times that a range was given a new primary."""

    def wake(self) -> None:
        """Check immediately, because the catalogue has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Run until canceled."""
        loop = asyncio.get_running_loop()
        probe_at = 0.0
        while True:
            self._wake.clear()
            catalogue = self._catalogues.catalogue
            watched = _watched(catalogue) if self._is_leader(catalogue) else ()
            is_due = loop.time() >= probe_at or not watched
            try:
                if is_due:
                    await self._probe(catalogue, watched)
                if watched:
                    await self._fail_over(catalogue)
            except (OSError, GatherError) as error:
                logger.warning("ranges could not get a new primary: %s", error)
            except Exception:
                logger.exception("ranges could not get a new primary")
            if is_due:
                probe_at = loop.time() + PROBE_S
            with suppress(TimeoutError):
                async with asyncio.timeout(max(probe_at - loop.time(), 0.0) if watched else None):
                    await self._wake.wait()

    async def _probe(self, catalogue: Catalogue, nodes: Collection[str]) -> None:
        """Try to connect to these shards, and record which ones are gone."""
        now = asyncio.get_running_loop().time()
        refused = await asyncio.gather(*(self._shards.refuses(catalogue, node) for node in nodes))
        refusing = [node for node, is_so in zip(nodes, refused, strict=True) if is_so]
        self._refused_since = {node: self._refused_since.get(node, now) for node in refusing}
        self._gone = frozenset(node for node in refusing if now - self._refused_since[node] >= GONE_AFTER_S)

    async def _fail_over(self, catalogue: Catalogue) -> None:
        """Assign a new primary to each range whose primary is lost, if possible."""
        lost = {one.primary for one in catalogue.ranges.values()} - self._running(catalogue)
        made = only_as_leader(lambda catalogue: fail_over(catalogue, self._gone), self._is_leader)
        moved = len(catalogue.ranges) if lost else 0
        while moved:
            moved = 0

            def judged(catalogue: Catalogue) -> Change | None:
                nonlocal moved
                change = made(catalogue)
                moved = 0 if change is None else len(change.puts)
                return change

            await self._catalogues.transact(judged)
            self.count += moved
            if moved:
                logger.info("%d ranges have a new primary in place of %s", moved, ", ".join(sorted(lost)))

    def _running(self, catalogue: Catalogue) -> frozenset[str]:
        return (catalogue.alive & catalogue.nodes.keys()) - self._gone


def only_as_leader(transition: Transition, is_leader: Callable[[Catalogue], bool]) -> Transition:
    """Restrict a transition to catalogues in which this reconciler is the leader."""

    def judged(catalogue: Catalogue) -> Change | None:
        change = transition(catalogue) if is_leader(catalogue) else None
        return None if change is None else replace(change, unchanged=change.unchanged | {"reconciler"})

    return judged


def _watched(catalogue: Catalogue) -> set[str]:
    """Return the shards that are in sync with an open range."""
    return {node for one in catalogue.ranges.values() for node in one.in_sync if node in catalogue.nodes}

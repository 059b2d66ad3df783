"""Run a reconciler: hold elections, list segments in rounds, and carry out the pulls, drops and flips that its planner
decides on.

Several reconcilers may run, and one of them is the leader: the one whose identity is in the `reconciler` record. That
record is under the leader's lease. The revision that wrote the record is the leader's fencing token.

A round lists the segments of all shards, then reads the catalogue, and then executes the plan. It begins when the
catalogue has changed, when a pull has ended, and every few seconds. It ends when all drops have received a response. If
a drop or a flip gets no response, the next round begins with a new fencing token. `Failover` runs concurrently with the
rounds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.cluster.catalogue.client import Transition
from app.cluster.catalogue.ranges import close_ranges, lose_rows
from app.cluster.catalogue.records import Catalogue, Change, Mark
from app.cluster.reconciler.catalogue_calls import CatalogueCalls
from app.cluster.reconciler.cluster_view import ClusterView, Holding
from app.cluster.reconciler.failover import Failover, only_as_leader
from app.cluster.reconciler.moves import AT_ONCE, Move, apply_moves
from app.cluster.reconciler.plan import Drop, Planner, Pull
from app.cluster.reconciler.shard_calls import ShardCalls, ShardFailed
from app.errors import GatherError

ROUND_S: Final = 3.0
"""Seconds after which a round begins even if nothing has changed."""
REST: Final = 4.0
"""The pause after a round as a multiple of the round's duration, limited to MOST_REST_S seconds. Rounds pause because
listing many segments is expensive.
"""
LEAST_REST_S: Final = 0.1
MOST_REST_S: Final = 5.0
logger = logging.getLogger("gathernd")


@dataclass
class Counts:
    """Counts since a reconciler's startup, for its metrics."""

    pulls: int = 0
    pulls_failed: int = 0
    drops: int = 0
    drops_failed: int = 0
    lists_failed: int = 0
    flips: int = 0


@dataclass(frozen=True, slots=True)
class RunningPull:
    """A running pull; `begun` is when it was ordered, by the event loop's clock."""

    pull: Pull
    begun: float
    task: asyncio.Task[None]


@dataclass
class Reconciler:
    """One reconciler. Its public fields expose its state for the metrics."""

    catalogues: CatalogueCalls
    shards: ShardCalls
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{secrets.token_hex(8)}")
    """Unique among all reconcilers, past and present."""
    planner: Callable[[], Planner] = Planner
    counts: Counts = field(default_factory=Counts)
    pulling: dict[tuple[str, str], RunningPull] = field(default_factory=dict)
    """Running pulls, by shard and segment."""
    view: ClusterView | None = None
    """The view of this reconciler's last round, or None while it is not the leader."""

    def __post_init__(self) -> None:
        self._planner = self.planner()
        self._fence = 0
        self._renew = False
        """Whether a drop or flip without a response may still be executed. A new fencing token prevents that."""
        self._wake = asyncio.Event()
        self.failover = Failover(
            self.catalogues, self.shards, lambda catalogue: self._is_leader_in(catalogue, self._fence)
        )
        self.catalogues.taken = self._wake_up

    def _wake_up(self) -> None:
        self._wake.set()
        self.failover.wake()

    async def run(self) -> None:
        """Run until canceled."""
        failing_over = asyncio.create_task(self.failover.run())
        try:
            while True:
                self._wake.clear()
                begun = _now()
                try:
                    await self._round()
                except (OSError, GatherError) as error:
                    logger.warning("a reconciler round failed: %s", error)
                await asyncio.sleep(min(max(REST * (_now() - begun), LEAST_REST_S), MOST_REST_S))
                with suppress(TimeoutError):
                    async with asyncio.timeout(ROUND_S):  # `wait_for` may swallow a cancellation
                        await self._wake.wait()
        finally:
            failing_over.cancel()
            self._resign()

    # A round

    async def _round(self) -> None:
        if not await self._become_leader():
            return
        catalogue, fence = self.catalogues.catalogue, self._fence
        found = await asyncio.gather(
            *(self._list(node, catalogue, fence) for node in sorted(catalogue.alive) if node in catalogue.nodes)
        )
        catalogue = await self.catalogues.refresh()
        if not self._is_leader_in(catalogue, fence):
            self._resign()
            return
        self.view = ClusterView(catalogue, dict(holding for holding in found if holding is not None))
        plan = self._planner.plan(self.view, _now())
        self._start_pulls(plan.pulls)
        await self._keep_ranges(plan.lost_rows, fence)
        for first in range(0, len(plan.flips), AT_ONCE):
            await self._apply_moves(plan.flips[first : first + AT_ONCE], fence)
        await asyncio.gather(*(self._drop(drop, catalogue, fence) for drop in plan.drops))

    async def _list(self, node: str, catalogue: Catalogue, fence: int) -> tuple[str, Holding] | None:
        try:
            held = await self.shards.list(catalogue, node, fence)
        except ShardFailed as failed:
            self.counts.lists_failed += 1
            logger.warning("%s cannot be listed: %s", node, failed)
            return None
        return node, Holding(fence, catalogue.revision, held)

    async def _apply_moves(self, moves: tuple[Move, ...], fence: int) -> None:
        """Write the segments of these moves into the catalogue.

        A former leader writes nothing, and notices its loss of leadership in its next round.
        """
        try:
            await self._transact(partial(apply_moves, moves=moves), fence)
        except (OSError, GatherError):
            self._renew = True
            raise
        self.counts.flips += len(moves)

    async def _keep_ranges(self, lost: Mapping[str, str], fence: int) -> None:
        """Remove shards that have lost their rows from open ranges, and close the ranges of removed versions."""
        for tensor, node in lost.items():
            leaving = partial(lose_rows, tensor=tensor, node=node)
            if leaving(self.catalogues.catalogue) is not None:
                logger.warning("%s has lost the rows of %s", node, tensor)
                await self._transact(leaving, fence)
        if close_ranges(self.catalogues.catalogue) is not None:
            await self._transact(close_ranges, fence)

    async def _transact(self, transition: Transition, fence: int) -> None:
        """Change the catalogue if this reconciler is still the leader."""
        await self.catalogues.transact(
            only_as_leader(transition, lambda catalogue: self._is_leader_in(catalogue, fence))
        )

    def _start_pulls(self, pulls: tuple[Pull, ...]) -> None:
        """Start and cancel pulls so that exactly these are running."""
        wanted = {(one.node, one.tensor): one for one in pulls}
        for known, running in list(self.pulling.items()):
            if known not in wanted:
                running.task.cancel()
                del self.pulling[known]
        for known, pull in wanted.items():
            if known not in self.pulling:
                task = asyncio.create_task(self._pull(pull, self.catalogues.catalogue, self._fence))
                self.pulling[known] = RunningPull(pull, _now(), task)

    async def _pull(self, pull: Pull, catalogue: Catalogue, fence: int) -> None:
        try:
            await self.shards.pull(catalogue, pull, fence)
            self.counts.pulls += 1
        except ShardFailed as failed:
            self.counts.pulls_failed += 1
            logger.warning("%s cannot pull %s: %s", pull.node, pull.tensor, failed)
            self._planner.pull_failed(pull.node, pull.tensor, _now())
        del self.pulling[pull.node, pull.tensor]
        self._wake.set()

    async def _drop(self, drop: Drop, catalogue: Catalogue, fence: int) -> None:
        try:
            await self.shards.drop(catalogue, drop, fence)
            self.counts.drops += 1
        except ShardFailed as failed:
            self.counts.drops_failed += 1
            logger.warning("%s has not dropped %s: %s", drop.node, drop.tensor, failed)
            self._renew = self._renew or not failed.is_over

    # Leadership

    async def _become_leader(self) -> bool:
        """Become the leader if there is none, or become the leader again to get a new fencing token.

        Returns whether this reconciler is the leader.
        """
        if self.catalogues.catalogue.reconciler is None or self._renew:
            await self.catalogues.transact(self._election)
        catalogue = self.catalogues.catalogue
        if catalogue.reconciler != Mark(self.identity):
            self._resign()
            return False
        fence = catalogue.revisions["reconciler"]
        if fence != self._fence:
            logger.info("this reconciler is the leader, with fencing token %d", fence)
            self._fence, self._renew = fence, False
            self.failover.wake()  # when the catalogue changed, the fencing token was not yet known
        return True

    def _election(self, catalogue: Catalogue) -> Change | None:
        is_free = catalogue.reconciler is None and "options" in catalogue.revisions
        is_old = self._renew and self._is_leader_in(catalogue, self._fence)
        if not (is_free or is_old):
            return None
        return Change({"reconciler": Mark(self.identity)}, leased=frozenset({"reconciler"}))

    def _is_leader_in(self, catalogue: Catalogue, fence: int) -> bool:
        return catalogue.reconciler == Mark(self.identity) and catalogue.revisions["reconciler"] == fence

    def _resign(self) -> None:
        """Give up everything that was begun as the leader."""
        if self._fence:
            logger.info("this reconciler is no longer the leader")
        for running in self.pulling.values():
            running.task.cancel()
        self.pulling.clear()
        self._planner = self.planner()
        self._fence, self._renew, self.view = 0, False, None


def _now() -> float:
    return asyncio.get_running_loop().time()

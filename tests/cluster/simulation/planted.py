"""Faults that are planted into the parts of the protocol, to show that the simulation finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from app.cluster.catalogue.records import Catalogue, Change, Segment
from app.cluster.reconciler.cluster_view import ClusterView
from app.cluster.reconciler.moves import Move
from app.cluster.reconciler.plan import Drop, Plan, Planner, Pull, is_whole
from app.cluster.reconciler.reconciler import Reconciler
from tests.cluster.simulation.database import Database, DatabaseClient
from tests.cluster.simulation.reconciler import ReconcilerProcess, SimulatedCatalogue
from tests.cluster.simulation.router import Router, SimulatedUpload
from tests.cluster.simulation.schedule import FAULTS_UNTIL, Parts
from tests.cluster.simulation.service_calls import DropSegment, Sent
from tests.cluster.simulation.shard import Shard


class _NoFence(Shard):
    """Takes orders of any reconciler."""

    def check_fence(self, fence: int) -> bool:
        return True


class _ReadsNothing(SimulatedCatalogue):
    """Acts on the catalogue that it knows, though it may have been out of office for long."""

    async def refresh(self) -> Catalogue:
        return self.catalogue


class _ActsOutOfOffice(ReconcilerProcess):
    catalogues = _ReadsNothing


class _AllButOne(Planner):
    """Flips a move before its last copy is whole."""

    def is_ready(self, move: Move, view: ClusterView) -> bool:
        return sum(is_whole(copy, move, view) for copy in move.copies) >= len(move.copies) - 1


class _FlipsEarly(ReconcilerProcess):
    planner = _AllButOne


class _LosesRows(Planner):
    """Has the halves of a segment pulled without their first row."""

    def plan(self, view: ClusterView, now: float) -> Plan:
        plan = super().plan(view, now)
        return replace(plan, pulls=tuple(_without_first_row(pull) for pull in plan.pulls))


def _without_first_row(pull: Pull) -> Pull:
    sources = tuple(
        one if one.rows is None else replace(one, rows=(one.rows[0] + 1, one.rows[1])) for one in pull.order.sources
    )
    return replace(pull, order=replace(pull.order, sources=sources))


class _SplitsBadly(ReconcilerProcess):
    planner = _LosesRows


class _DropsFirst(Planner):
    """Has a shard drop what it has as soon as it is drained."""

    def plan(self, view: ClusterView, now: float) -> Plan:
        plan = super().plan(view, now)
        drained = [node for node in view.known if node in view.catalogue.drained]
        drops = [Drop(node, one.tensor) for node in drained for one in view.segments if node in one.segment.nodes]
        return replace(plan, drops=(*plan.drops, *drops))


class _DrainsBadly(ReconcilerProcess):
    planner = _DropsFirst


class LateDrops(Shard):
    """Gets orders to drop late, so that no answer comes in time. That does no harm alone."""

    def receive(self, sender: str, message: Sent) -> None:
        if isinstance(message, DropSegment) and self.world.now < FAULTS_UNTIL:
            self.after(20.0 * self.world.random.random(), super().receive, sender, message)
        else:
            super().receive(sender, message)


class _KeepsItsFence(Reconciler):
    """Goes on though a drop was not answered, which may be carried out later."""

    async def _drop(self, drop: Drop, catalogue: Catalogue, fence: int) -> None:
        await super()._drop(drop, catalogue, fence)
        self._renew = False


class _ForgetsDrops(ReconcilerProcess):
    make = _KeepsItsFence


class _PublishesEarly(SimulatedUpload):
    """Publishes before the last replica is whole."""

    def may_publish(self, missing: Sequence[str]) -> bool:
        return len(missing) <= 1


class _EarlyRouter(Router):
    upload = _PublishesEarly


class _ComesBack(SimulatedUpload):
    """Gives the rows to a shard again that they were taken from, when reconcilers may be dropping them there."""

    def moved(self, catalogue: Catalogue, segment: Segment, node: str, lost: set[str]) -> Change | None:
        return super().moved(catalogue, segment, node, set())


class _ReturningRouter(Router):
    upload = _ComesBack


class _AnyCatalogue(DatabaseClient):
    """Takes whichever catalogue comes last."""

    def newer(self, found: Catalogue) -> None:
        self.catalogue = found
        self._take(found)


class _BackwardsRouter(Router):
    def make_client(self, database: Database) -> DatabaseClient:
        return _AnyCatalogue(database, self, self.take)


PLANTED: Final = {
    "a reconciler that acts out of office, and shards without a fence": Parts(_NoFence, reconciler=_ActsOutOfOffice),
    "a flip before the last copy is whole": Parts(reconciler=_FlipsEarly),
    "a split that loses a row": Parts(reconciler=_SplitsBadly),
    "a publishing before the last replica is whole": Parts(router=_EarlyRouter),
    "a drain that drops first": Parts(reconciler=_DrainsBadly),
    "a drop without an answer that is forgotten": Parts(LateDrops, reconciler=_ForgetsDrops),
    "an upload that comes back to a shard": Parts(router=_ReturningRouter),
    "a map that goes backwards": Parts(router=_BackwardsRouter),
}

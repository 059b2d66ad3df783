"""Faults that are planted into the parts of the protocol, to show that the simulation finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from app.cluster.catalogue.records import Catalogue, Change, Segment
from app.cluster.reconciler.cluster_view import ClusterView
from app.cluster.reconciler.moves import Move
from app.cluster.reconciler.plan import Drop, Plan, Planner, Pull, is_whole
from app.cluster.reconciler.reconciler import Reconciler
from app.cluster.replication.primary import Members, Round, Standing, Step
from app.cluster.replication.replica import Append, AppendPlan, ReplicaState
from tests.cluster.simulation.database import Database, DatabaseClient
from tests.cluster.simulation.primaries import Primaries
from tests.cluster.simulation.range_copy import RangeCopy
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


class _EarlyAcknowledgement(Primaries):
    """Counts a record as committed before the last replica has it."""

    def step(self, shipped: Round) -> Step:
        has_it = [one for one in shipped.in_sync if shipped.matched.get(one, -1) >= shipped.end]
        return Step.COMMITTED if len(has_it) >= len(shipped.in_sync) - 2 else super().step(shipped)


class _NoEpochs(Primaries):
    """Takes records of any primary, which goes on by the catalogue that it knows."""

    def is_stale(self, own_epoch: int, epoch: int) -> bool:
        return False

    def on_append(self, state: ReplicaState | None, message: Append) -> AppendPlan:
        known = 0 if state is None else state.epoch
        return super().on_append(state, replace(message, epoch=max(known, message.epoch)))

    def standing(self, members: Members | None, copy: RangeCopy | None, resolved: int) -> Standing:
        stands = super().standing(members, copy, resolved)
        return Standing.READY if stands is Standing.RAISE_RECORD and copy and not copy.state.tail else stands


class _ForgetsKeys(Primaries):
    """Keeps the keys of the scatters that it has carried out itself."""

    def apply(self, tensor: str, copy: RangeCopy, commit_to: int) -> None:
        super().apply(tensor, copy, commit_to)
        record = self.catalogue.ranges.get(tensor)
        if record is not None and record.primary != self.node:
            copy.keys.clear()


class _ReadsTails(Primaries):
    """Serves records that may not be committed."""

    def visible(self, copy: RangeCopy) -> tuple[int, Mapping[int, int]]:
        values = dict(copy.values)
        for record in copy.after(copy.applied):
            values.update(record.values)
        return copy.state.last, values


PLANTED: Final = {
    "a scatter that is acknowledged before the last replica has it": Parts(ranges=_EarlyAcknowledgement),
    "a primary that goes on after another one has taken its place": Parts(ranges=_NoEpochs),
    "keys that are forgotten at failover": Parts(ranges=_ForgetsKeys),
    "a read of a record that is not committed": Parts(ranges=_ReadsTails),
    "a reconciler that acts out of office, and shards without a fence": Parts(_NoFence, reconciler=_ActsOutOfOffice),
    "a flip before the last copy is whole": Parts(reconciler=_FlipsEarly),
    "a split that loses a row": Parts(reconciler=_SplitsBadly),
    "a publishing before the last replica is whole": Parts(router=_EarlyRouter),
    "a drain that drops first": Parts(reconciler=_DrainsBadly),
    "a drop without an answer that is forgotten": Parts(LateDrops, reconciler=_ForgetsDrops),
    "an upload that comes back to a shard": Parts(router=_ReturningRouter),
    "a map that goes backwards": Parts(router=_BackwardsRouter),
}

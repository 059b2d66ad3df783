"""Faults that are planted into the parts of the protocol, to show that the simulation finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.cluster.reconciler.cluster_view import ClusterView
from app.cluster.reconciler.moves import Move
from app.cluster.reconciler.plan import Planner, is_complete
from app.cluster.replication.primary import Round, Step
from tests.cluster.simulation.primaries import Primaries
from tests.cluster.simulation.range_copy import RangeCopy
from tests.cluster.simulation.reconciler import ReconcilerProcess
from tests.cluster.simulation.router import Router, SimulatedUpload
from tests.cluster.simulation.schedule import Parts


class _AllButOne(Planner):
    """Flips a move before its last copy is whole."""

    def is_ready(self, move: Move, view: ClusterView) -> bool:
        return sum(is_complete(copy, move, view) for copy in move.copies) >= len(move.copies) - 1


class _FlipsEarly(ReconcilerProcess):
    planner = _AllButOne


class _PublishesEarly(SimulatedUpload):
    """Publishes before the last replica is whole."""

    def may_publish(self, missing: Sequence[str]) -> bool:
        return len(missing) <= 1


class _EarlyRouter(Router):
    upload = _PublishesEarly


class _EarlyAcknowledgement(Primaries):
    """Counts a record as committed before the last replica has it."""

    def step(self, shipped: Round) -> Step:
        has_it = [one for one in shipped.in_sync if shipped.matched.get(one, -1) >= shipped.end]
        return Step.COMMITTED if len(has_it) >= len(shipped.in_sync) - 2 else super().step(shipped)


class _ReadsTails(Primaries):
    """Serves records that may not be committed."""

    def visible(self, copy: RangeCopy) -> tuple[int, Mapping[int, int]]:
        values = dict(copy.values)
        for record in copy.after(copy.applied):
            values.update(record.values)
        return copy.state.last, values


PLANTED: Final = {
    "a scatter that is acknowledged before the last replica has it": Parts(ranges=_EarlyAcknowledgement),
    "a read of a record that is not committed": Parts(ranges=_ReadsTails),
    "a flip before the last copy is whole": Parts(reconciler=_FlipsEarly),
    "a publishing before the last replica is whole": Parts(router=_EarlyRouter),
}

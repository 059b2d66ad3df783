"""The process of a reconciler: the `Reconciler` of the service, on a simulated clock, network and database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.cluster.catalogue.client import Transition
from app.cluster.catalogue.records import Catalogue
from app.cluster.reconciler.catalogue_calls import CatalogueCalls
from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.reconciler.plan import Drop, Planner, Pull
from app.cluster.reconciler.reconciler import Reconciler
from app.cluster.reconciler.shard_calls import ShardCalls, ShardFailed
from tests.cluster.simulation.database import Database, DatabaseClient
from tests.cluster.simulation.service_calls import Answer, DropSegment, ListSegments, PullSegment, Sent
from tests.cluster.simulation.world import Process, World

LIST_AFTER = 1.0
DROP_AFTER = 1.0
PULL_AFTER = 6.0
"""How long a reconciler waits for what it has asked for."""


class SimulatedCatalogue(CatalogueCalls):
    """Calls of the simulated database."""

    def __init__(self, client: DatabaseClient) -> None:
        self._simulated = client
        self.taken = lambda: None

    @property
    def catalogue(self) -> Catalogue:
        return self._simulated.catalogue

    async def refresh(self) -> Catalogue:
        catalogue = await self._simulated.refresh()
        if catalogue is None:
            raise OSError("the database does not answer")
        return catalogue

    async def transact(self, transition: Transition) -> None:
        if code := await self._simulated.transact(transition):
            raise OSError(f"the change is not made: {code}")


class SimulatedShards(ShardCalls):
    """Calls of simulated shards."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def list(self, catalogue: Catalogue, node: str, fence: int | None = None) -> Mapping[str, HeldSegment]:
        asked = ListSegments(next(self._process.world.ids), fence or 0)
        answer = await self._send(catalogue.nodes[node].address, asked, LIST_AFTER)
        assert answer.segments is not None
        return answer.segments

    async def pull(self, catalogue: Catalogue, pull: Pull, fence: int) -> None:
        order = replace(pull.order, fence=fence)
        asked = PullSegment(next(self._process.world.ids), pull.tensor, order)
        await self._send(catalogue.nodes[pull.node].address, asked, PULL_AFTER)

    async def drop(self, catalogue: Catalogue, drop: Drop, fence: int) -> None:
        asked = DropSegment(next(self._process.world.ids), drop.tensor, fence)
        await self._send(catalogue.nodes[drop.node].address, asked, DROP_AFTER)

    async def refuses(self, catalogue: Catalogue, node: str) -> bool:
        return self._process.world.refuses(catalogue.nodes[node].address, self._process.machine)

    async def _send(self, address: str, asked: ListSegments | PullSegment | DropSegment, seconds: float) -> Answer:
        if not self._process.world.answers(address, self._process.machine):
            raise ShardFailed("nobody listens", is_over=True)
        answer = await self._process.ask(address, asked, seconds)
        if answer is None:
            raise ShardFailed("no answer", is_over=False)
        if not answer.is_done:
            raise ShardFailed("refused", is_over=True)
        return answer


class ReconcilerProcess(Process):
    """One reconciler, from its start to its crash."""

    def __init__(self, world: World, number: int, database: Database, drop_after: float, copies_at_once: int) -> None:
        super().__init__(world, f"c{number}", f"c{number}:7000")
        catalogues = SimulatedCatalogue(DatabaseClient(database, self, lambda _: catalogues.taken()))
        shards, name = SimulatedShards(self), f"reconciler-{number}"
        self.reconciler = Reconciler(catalogues, shards, name, lambda: Planner(copies_at_once, drop_after))
        self.start(self.reconciler.run)

    def receive(self, sender: str, message: Sent) -> None:
        """An answer has come."""
        if isinstance(message, Answer):
            self.take_answer(message)

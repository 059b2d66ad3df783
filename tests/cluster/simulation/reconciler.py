"""The process of a reconciler: the `Reconciler` of the service, on a simulated clock, network and database."""

from __future__ import annotations

import asyncio
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
from tests.cluster.simulation.process_loop import ProcessLoop
from tests.cluster.simulation.service_calls import Answer, DropSegment, ListSegments, PullSegment, Sent
from tests.cluster.simulation.world import Process, World

LIST_AFTER = 1.0
DROP_AFTER = 1.0
PULL_AFTER = 6.0
"""How long a reconciler waits for what it has asked for."""


class SimulatedCatalogue(CatalogueCalls):
    """Calls of the simulated database."""

    def __init__(self, client: DatabaseClient, loop: ProcessLoop) -> None:
        self._simulated = client
        self._loop_of_process = loop
        self.taken = lambda: None

    @property
    def catalogue(self) -> Catalogue:
        return self._simulated.catalogue

    async def refresh(self) -> Catalogue:
        found: asyncio.Future[Catalogue | None] = self._loop_of_process.create_future()
        self._simulated.refresh(found.set_result)
        catalogue = await found
        if catalogue is None:
            raise OSError("the database does not answer")
        return catalogue

    async def transact(self, transition: Transition) -> None:
        found: asyncio.Future[str] = self._loop_of_process.create_future()
        self._simulated.transact(transition, found.set_result)
        if code := await found:
            raise OSError(f"the change is not made: {code}")


class SimulatedShards(ShardCalls):
    """Calls of simulated shards."""

    def __init__(self, process: Process, loop: ProcessLoop) -> None:
        self._process = process
        self._loop = loop
        self._asked: dict[int, asyncio.Future[Answer | None]] = {}

    def answered(self, answer: Answer) -> None:
        """A shard has answered; late answers are not heeded."""
        self._over(answer.request_id, answer)

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
        world, process = self._process.world, self._process
        if not world.answers(address, process.machine):
            raise ShardFailed("nobody listens", is_over=True)
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        self._asked[asked.request_id] = future
        world.send(process, address, asked)
        process.after(seconds, self._over, asked.request_id, None)
        answer = await future
        if answer is None:
            raise ShardFailed("no answer", is_over=False)
        if not answer.is_done:
            raise ShardFailed("refused", is_over=True)
        return answer

    def _over(self, request_id: int, answer: Answer | None) -> None:
        future = self._asked.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(answer)


class ReconcilerProcess(Process):
    """One reconciler, from its start to its crash."""

    planner: type[Planner] = Planner

    def __init__(self, world: World, number: int, database: Database, drop_after: float, copies_at_once: int) -> None:
        super().__init__(world, f"c{number}", f"c{number}:7000")
        loop = ProcessLoop(self)  # type: ignore[abstract]
        client = DatabaseClient(database, self, lambda _: catalogues.taken())
        catalogues = SimulatedCatalogue(client, loop)
        self._shards = SimulatedShards(self, loop)
        self.reconciler = Reconciler(
            catalogues, self._shards, f"reconciler-{number}", lambda: self.planner(copies_at_once, drop_after)
        )
        loop.start(self.reconciler.run())

    def receive(self, sender: str, message: Sent) -> None:
        """An answer has come."""
        if isinstance(message, Answer):
            self._shards.answered(message)

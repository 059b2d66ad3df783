"""The simulated store of records, and the processes of coordinators, of which there may be two at a time."""

from __future__ import annotations

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.coordinator import (
    Coordinator,
    CoordinatorAction,
    CreateRecord,
    FindRecord,
    ReadLatest,
)
from app.cluster.coordinator.messages import Message, Send
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.service_calls import Sent
from tests.cluster.simulation.world import Process, World


class Records:
    """The records by number, durable: one that is there stays as it is. Requests and answers may be lost."""

    def __init__(self, world: World, checks: Checks) -> None:
        self._world = world
        self._checks = checks
        self._records: dict[int, ClusterState] = {}
        self.loss = 0.0

    def do(self, asker: CoordinatorProcess, action: ReadLatest | CreateRecord | FindRecord) -> None:
        """A request; what it is answered with comes later, or never."""
        if self._world.random.random() >= self.loss:
            self._world.after(self._world.delay(), self._done, asker, action)

    def _done(self, asker: CoordinatorProcess, action: ReadLatest | CreateRecord | FindRecord) -> None:
        records = self._records
        match action:
            case ReadLatest():
                self._answer(asker, "latest", records[max(records)] if records else None)
            case CreateRecord(state):
                if state.generation not in records:
                    self._checks.committed(records.get(state.generation - 1), state)
                    records[state.generation] = state
                    self._answer(asker, "created", state.generation)
                else:
                    self._answer(asker, "exists", records[state.generation])
            case FindRecord(generation):
                if generation in records:
                    self._answer(asker, "exists", records[generation])

    def _answer(self, asker: CoordinatorProcess, event: str, value: object) -> None:
        if self._world.random.random() >= self.loss:
            asker.after(self._world.delay(), asker.stored, event, value)


class CoordinatorProcess(Process):
    """One coordinator, from its start to its crash. It is what the name `coordinator` leads to until the next one."""

    def __init__(self, world: World, number: int, options: ClusterOptions, records: Records) -> None:
        super().__init__(world, f"c{number}", f"c{number}:7000")
        self._records = records
        self.coordinator = self.make_coordinator(f"coordinator-{number}", options)
        world.processes["coordinator"] = self
        self._do(self.coordinator.start())
        self.every(1.0, self._tick)

    def make_coordinator(self, identity: str, options: ClusterOptions) -> Coordinator:
        """The side of the protocol that is tested."""
        return Coordinator(identity, options)

    def crash(self) -> None:
        """It is gone, and the name leads nowhere."""
        super().crash()
        if self.world.processes.get("coordinator") is self:
            del self.world.processes["coordinator"]

    def receive(self, sender: str, message: Sent) -> None:
        """A message has come."""
        assert isinstance(message, Message)
        self._do(self.coordinator.receive(sender, message, self.world.now))

    def _tick(self) -> None:
        self._do(self.coordinator.tick(self.world.now))

    def stored(self, event: str, value: object) -> None:
        """What became of a record."""
        now, coordinator = self.world.now, self.coordinator
        if event == "latest":
            self._do(coordinator.latest(value, now))  # type: ignore[arg-type]
        elif event == "created":
            self._do(coordinator.created(value, now))  # type: ignore[arg-type]
        else:
            self._do(coordinator.exists(value, now))  # type: ignore[arg-type]

    def _do(self, actions: list[CoordinatorAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.world.send(self, action.to, action.message)
            else:
                self._records.do(self, action)
        if self.coordinator.stopped and self.alive:
            self.crash()

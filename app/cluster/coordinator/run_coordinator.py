"""Runs a coordinator: a clock, its records, and whoever carries its messages. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.coordinator import Coordinator, CoordinatorAction, CreateRecord, FindRecord, ReadLatest
from app.cluster.coordinator.message_json import record_from_json, record_to_json
from app.cluster.coordinator.messages import Message, Send
from app.cluster.shard_map import ShardMap

TICK_S: Final = 1.0
KEPT: Final = 16
"""So many of the newest records keep their content; older ones are emptied, and keep their numbers."""
_log = logging.getLogger(__name__)


class Records(Protocol):
    """Where records are kept; see `placement.HeadRecords`. Its methods may block, and raise OSError."""

    def latest(self) -> bytes | None:
        """The record with the highest number, None where there is none."""
        ...

    def find(self, number: int) -> bytes | None:
        """The record of a number, None where there is none; b"" where it is an old one."""
        ...

    def create(self, number: int, record: bytes) -> bytes | None:
        """Create a record durably: None, or the record that has this number already."""
        ...


class CoordinatorRunner:
    """One coordinator. `send` takes an address and a message and does not wait; what it cannot deliver is lost."""

    def __init__(
        self, coordinator: Coordinator, records: Records, send: Callable[[str, Message], None], tick_s: float = TICK_S
    ) -> None:
        self.coordinator = coordinator
        self._records = records
        self._send = send
        self._tick_s = tick_s
        self._asked: asyncio.Queue[ReadLatest | CreateRecord | FindRecord] = asyncio.Queue()

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        self._do(self.coordinator.receive(sender, message, self._now()))

    async def run(self) -> None:
        """Run until another coordinator takes over, or until it is cancelled."""
        records = asyncio.create_task(self._answer_records())
        try:
            self._do(self.coordinator.start())
            while not self.coordinator.stopped:
                if records.done():
                    records.result()
                await asyncio.sleep(self._tick_s)
                self._do(self.coordinator.tick(self._now()))
        finally:
            records.cancel()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _do(self, actions: list[CoordinatorAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action.to, action.message)
            else:
                self._asked.put_nowait(action)

    async def _answer_records(self) -> None:
        """One after the other; what fails is asked for again at the next tick."""
        while True:
            action = await self._asked.get()
            try:
                found = await asyncio.to_thread(self._ask, action)
            except OSError as error:
                _log.warning("the coordinator's records cannot be reached: %s", error)
                continue
            now = self._now()
            match action:
                case ReadLatest():
                    self._do(self.coordinator.latest(found, now))
                case CreateRecord(state) if found is None:
                    self._do(self.coordinator.created(state.generation, now))
                case _ if found is not None:
                    self._do(self.coordinator.exists(found, now))

    def _ask(self, action: ReadLatest | CreateRecord | FindRecord) -> ClusterState | None:
        match action:
            case ReadLatest():
                found, number = self._records.latest(), 0
            case CreateRecord(state):
                found, number = self._records.create(state.generation, record_to_json(state)), state.generation
            case FindRecord(number):
                found = self._records.find(number)
        if found == b"":  # of a coordinator that began long ago: it is enough to know that there is one
            return _emptied(number)
        return None if found is None else record_from_json(found)


def _emptied(number: int) -> ClusterState:
    return ClusterState(map=ShardMap(generation=number))

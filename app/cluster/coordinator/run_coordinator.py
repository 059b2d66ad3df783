"""Runs a coordinator: a clock, its records, and the messages that wait for others. Nothing here decides anything.

Whoever calls hands its messages over and takes its own along: so a coordinator calls nobody, and one kind of call
carries the whole protocol. Messages that nobody fetches are dropped, the oldest first: the protocol takes any message
for one that may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.cluster_status import status_of
from app.cluster.coordinator.coordinator import Coordinator, CoordinatorAction, CreateRecord, FindRecord, ReadLatest
from app.cluster.coordinator.message_json import (
    BadMessage,
    message_from_json,
    message_to_json,
    record_from_json,
    record_to_json,
)
from app.cluster.coordinator.messages import Message, Send
from app.cluster.shard_map import ShardMap

TICK_S: Final = 1.0
KEPT: Final = 16
"""So many of the newest records keep their content; older ones are emptied, and keep their numbers."""
MAX_WAITING: Final = 1000
"""Messages that wait for one address."""
FORGOTTEN_AFTER_S: Final = 60.0
"""An address that has not called for so long has no messages kept."""
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


@dataclass(slots=True)
class _Box:
    called_at: float
    waiting: deque[Message] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class CoordinatorRunner:
    """One coordinator behind one call, `exchange`."""

    def __init__(self, identity: str, options: ClusterOptions, records: Records, tick_s: float = TICK_S) -> None:
        self.coordinator = Coordinator(identity, options)
        self._records = records
        self._tick_s = tick_s
        self._boxes: dict[str, _Box] = {}
        self._asked: asyncio.Queue[ReadLatest | CreateRecord | FindRecord] = asyncio.Queue()

    async def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float = 0.0) -> list[bytes]:
        """Receive messages of `sender`, and what waits for it; where nothing does, wait up to `wait_s` seconds for it.

        A text that is no message is left out and logged.
        """
        now = self._now()
        for address in [one for one, box in self._boxes.items() if now - box.called_at > FORGOTTEN_AFTER_S]:
            del self._boxes[address]
        box = self._boxes.setdefault(sender, _Box(now))
        box.called_at = now
        for text in texts:
            try:
                self._do(self.coordinator.receive(sender, message_from_json(text), now))
            except BadMessage as error:
                _log.warning("%s sent what is no message: %s", sender, error)
        if not box.waiting and wait_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(box.filled.wait(), wait_s)
        box.filled.clear()
        found = [message_to_json(message) for message in box.waiting]
        box.waiting.clear()
        return found

    def status(self) -> Mapping[str, Any]:
        """The cluster as its coordinator knows it; see `cluster_status.status_of`."""
        return status_of(self.coordinator)

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
                self._post(action.to, action.message)
            else:
                self._asked.put_nowait(action)

    def _post(self, to: str, message: Message) -> None:
        box = self._boxes.get(to)
        if box is not None:
            box.waiting.append(message)
            box.filled.set()

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

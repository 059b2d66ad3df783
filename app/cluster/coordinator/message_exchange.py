"""A coordinator and the messages that wait for others: whoever calls hands its messages over and takes its own along.

So a coordinator calls nobody, and one kind of call carries the whole protocol. Messages that nobody fetches are
dropped, the oldest first: the protocol takes any message for one that may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.cluster_status import status_of
from app.cluster.coordinator.coordinator import Coordinator
from app.cluster.coordinator.message_json import BadMessage, message_from_json, message_to_json
from app.cluster.coordinator.messages import Message
from app.cluster.coordinator.run_coordinator import TICK_S, CoordinatorRunner, Records

MAX_WAITING: Final = 1000
"""Messages that wait for one address."""
FORGOTTEN_AFTER_S: Final = 60.0
"""An address that has not called for so long has no messages kept."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Box:
    called_at: float
    waiting: deque[Message] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class MessageExchange:
    """One coordinator behind one call."""

    def __init__(self, identity: str, options: ClusterOptions, records: Records, tick_s: float = TICK_S) -> None:
        self.runner = CoordinatorRunner(Coordinator(identity, options), records, self._post, tick_s)
        self._boxes: dict[str, _Box] = {}

    async def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float = 0.0) -> list[bytes]:
        """Receive messages of `sender`, and what waits for it; where nothing does, wait up to `wait_s` seconds for it.

        A text that is no message is left out and logged.
        """
        now = asyncio.get_running_loop().time()
        if sender not in self._boxes:
            self._forget(now)
        box = self._boxes.setdefault(sender, _Box(now))
        box.called_at = now
        for text in texts:
            try:
                self.runner.receive(sender, message_from_json(text))
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
        return status_of(self.runner.coordinator)

    def _forget(self, now: float) -> None:
        for address in [one for one, box in self._boxes.items() if now - box.called_at > FORGOTTEN_AFTER_S]:
            del self._boxes[address]

    def _post(self, to: str, message: Message) -> None:
        now = asyncio.get_running_loop().time()
        box = self._boxes.get(to)
        if box is None or now - box.called_at > FORGOTTEN_AFTER_S:
            return
        box.waiting.append(message)
        box.filled.set()

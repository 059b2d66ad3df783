"""How a router or a shard reaches the coordinator: one blocking call that gives messages and takes those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.cluster.coordinator.message_json import message_from_json, message_to_json
from app.cluster.coordinator.messages import Message


class CoordinatorLink(Protocol):
    """Safe for several threads. An address is whatever name its messages are to wait under."""

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        """See `run_coordinator.CoordinatorRunner.exchange`. Raises OSError where the coordinator cannot be reached."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


def exchange(link: CoordinatorLink, sender: str, messages: Sequence[Message], wait_s: float = 0.0) -> list[Message]:
    """Give `messages` of `sender` and take those that wait for it, for which it waits up to `wait_s` seconds.

    Raises OSError where the coordinator cannot be reached, and BadMessage.
    """
    found = link.exchange(sender, [message_to_json(message) for message in messages], wait_s)
    return [message_from_json(text) for text in found]

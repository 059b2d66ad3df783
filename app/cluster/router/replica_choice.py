"""Which replica of a range a router asks: by turns, those that failed of late after the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from app.cluster.shard_map import Replica

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 10.0
"""Seconds for which a replica that failed is asked after the others, doubled with each failure."""
_STEP: Final = 0x9E3779B9
"""2**32 over the golden ratio."""


class ReplicaChoice:
    """What one router knows of the shards, by address. `now` is in seconds, from any beginning."""

    def __init__(self) -> None:
        self._turn = 0
        self._failed: dict[str, tuple[float, float]] = {}
        """Until when an address counts as failing, and how long the pause is."""

    def order(self, replicas: Sequence[Replica], now: float) -> Sequence[Replica]:
        """The replicas in the order in which to ask them."""
        if len(replicas) == 1:
            return replicas
        # A counter would give a range the same replica each time, where requests ask for an even number of ranges.
        self._turn = (self._turn + _STEP) & 0xFFFFFFFF
        first = self._turn * len(replicas) >> 32
        turned = (*replicas[first:], *replicas[:first])
        if not self._failed:
            return turned
        failed = self._failed
        return sorted(turned, key=lambda one: now < failed[one.address][0] if one.address in failed else False)

    def failed(self, address: str, now: float) -> None:
        """It refused, broke off, or was late."""
        _, pause = self._failed.get(address, (0.0, FIRST_PAUSE / 2))
        pause = min(2 * pause, LONGEST_PAUSE)
        self._failed[address] = (now + pause, pause)

    def keep_only(self, addresses: Collection[str]) -> None:
        """Forget the others."""
        for address in self._failed.keys() - addresses:
            del self._failed[address]

    def answered(self, address: str) -> None:
        """It answered."""
        if self._failed:
            self._failed.pop(address, None)

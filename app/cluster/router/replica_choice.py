"""Choose which replica of a range to try, and when to try another one as well (a hedge). Does no I/O.

Replicas are tried in round-robin order. A replica that failed comes last for the length of a pause, after which a
single read tries it again. There are no separate probes. A read is hedged when it has taken longer than 95% of its
shard's reads. Hedges are limited to a share of all reads, so that they add little load when all shards are slow.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from app.cluster.shard_map import Replica

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 4.0
"""First and longest pause during which a failed replica comes last, in seconds. The pause doubles with each failure."""
FIRST_P95: Final = 0.05
"""Assumed p95, in seconds, for a shard with no recorded reads."""
LEAST_P95: Final = 0.005
"""Minimum seconds before a hedge. Shorter delays are noise from the network and from this process."""
SILENT_READS: Final = 3
SILENT_S: Final = 0.25
"""A shard is silent if at least SILENT_READS reads over at least SILENT_S seconds were dropped without a response."""
HEDGED_SHARE: Final = 0.04
"""Maximum number of hedges per read of a range with several replicas."""
SAVED_HEDGES: Final = 10.0
"""Maximum number of hedges saved up during quiet times."""
_RISE: Final = 1 + 0.1 * 0.95
_FALL: Final = 1 - 0.1 * 0.05
"""Factors applied for a slower and for a faster read. They balance when 5% of the reads are slower."""
_STEP: Final = 0x9E3779B9
"""2**32 over the golden ratio."""
logger = logging.getLogger("gathernd")


class ReplicaChoice:
    """What one router knows about the shards, by address. `now` is in seconds since an arbitrary fixed point."""

    def __init__(self) -> None:
        self._turn = 0
        self._failed: dict[str, tuple[float, float]] = {}
        """When an address stops counting as failing, and the length of its pause."""
        self._p95: dict[str, float] = {}
        self._given_up: dict[str, tuple[float, int]] = {}
        """When an address stopped responding, and the number of reads that have been dropped since then."""
        self._hedges = SAVED_HEDGES
        """Number of hedges that are currently allowed."""

    def order(self, replicas: Sequence[Replica], now: float) -> Sequence[Replica]:
        """Return the replicas in the order in which to try them."""
        if len(replicas) <= 1:
            return replicas
        self._hedges = min(self._hedges + HEDGED_SHARE, SAVED_HEDGES)
        # With a simple counter, a range would always get the same replica if requests read an even number of ranges.
        self._turn = (self._turn + _STEP) & 0xFFFFFFFF
        first = self._turn * len(replicas) >> 32
        turned = (*replicas[first:], *replicas[:first])
        failed = self._failed
        if not failed:
            return turned
        ordered = sorted(turned, key=lambda one: now < failed[one.address][0] if one.address in failed else False)
        if ordered[0].address in failed:  # this read tries the failed replica, and no other read does so for a while
            self._pause(ordered[0].address, now)
        return ordered

    def hedge_after(self, address: str) -> float:
        """Return the seconds after which a read from this shard may be hedged."""
        return LEAST_P95 if address in self._failed else self._p95.get(address, FIRST_P95)

    def may_hedge(self, asked: str, other: str) -> bool:
        """Return whether `other` may be tried in addition to `asked`, which is slow. If so, one hedge is used up."""
        if other in self._failed:
            return False
        if asked not in self._failed:
            if self._hedges < 1:
                return False
            self._hedges -= 1
        return True

    def record_duration(self, address: str, seconds: float) -> None:
        """Record how long a read took."""
        p95 = self._p95.get(address, FIRST_P95)
        self._p95[address] = max(p95 * (_RISE if seconds > p95 else _FALL), LEAST_P95)

    def record_drop(self, address: str, seconds: float, now: float) -> None:
        """Record that a read was dropped after `seconds`, before its response began.

        A silent shard counts as failed.
        """
        if seconds < LEAST_P95:
            return
        if seconds > self._p95.get(address, FIRST_P95):
            self.record_duration(address, seconds)
        since, count = self._given_up.get(address, (now - seconds, 0))
        self._given_up[address] = (since, count + 1)
        if count + 1 >= SILENT_READS and now - since >= SILENT_S:
            self.record_failure(address, now, f"it has not answered for {now - since:.1f} s")

    def record_failure(self, address: str, now: float, why: str = "no answer") -> None:
        """Record that a shard refused, disconnected, was late, or was silent."""
        if address in self._failed:
            self._pause(address, now)
        else:
            logger.warning("skipping the shard %s: %s", address, why)
            self._failed[address] = (now + FIRST_PAUSE, FIRST_PAUSE)

    def _pause(self, address: str, now: float) -> None:
        """Begin the next, longer pause if the previous one is over."""
        until, pause = self._failed[address]
        if now >= until:
            pause = min(2 * pause, LONGEST_PAUSE)
            self._failed[address] = (now + pause, pause)

    def record_answer(self, address: str) -> None:
        """Record that a shard responded."""
        if self._given_up:
            self._given_up.pop(address, None)
        if self._failed and self._failed.pop(address, None) is not None:
            logger.info("the shard %s responds again", address)

    def keep_only(self, addresses: Collection[str]) -> None:
        """Discard what is known about all other addresses."""
        for known in (self._failed, self._p95, self._given_up):
            for address in known.keys() - addresses:
                known.pop(address)

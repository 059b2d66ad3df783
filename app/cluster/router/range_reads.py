"""Decide when to read which range of a version from which shard, for one request. Does no I/O.

The router reads all ranges in parallel. If a replica refuses, disconnects, is late or does not have the range, the
router immediately tries the next one. When all replicas of a range have been tried, the router fetches the map, because
the range may have moved, and tries the replicas again. There are three rounds in total. Every read specifies the
content, so any shard that responds sends rows of this version. A request gets either rows of one version or an error.

If a replica is slow, the router tries the next one as well (`hedge`) and uses the first response that begins.

The caller performs the actions, reports events to the methods `on_...`, and checks `outcome` after each report. Reports
about a read that has ended are ignored.

    AskReplica  ask a shard for the rows of a range, call `hedge` at `hedge_at`, and report a failure at `late_at`
    FetchMap    fetch the map once, and report the newest one
    Wake        report at this time
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias

from app.cluster.router.replica_choice import ReplicaChoice
from app.cluster.shard_map import Replica, ShardedVersion, ShardMap

ROUNDS: Final = 3
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""First and longest pause between rounds with the same map, in seconds. The pause doubles with each round."""
CATCH_UP_S: Final = 20.0
"""Seconds for which an open range gets additional rounds while a replica reports that it cannot be read yet. This is
long enough for a shard to become the primary and to commit the previous primary's records.
"""
Outcome: TypeAlias = Literal["done", "version_gone", "shard_unavailable", "deadline_exceeded"]
"""`version_gone`: the map no longer has this version.

The request is then restarted with the newer map, or fails because the version does not exist.
"""


class AskReplica(NamedTuple):
    """Ask `replica` for the needed rows of the range at index `number`. The replica is late at `late_at`.

    `late_at` leaves the other replicas their share of the time until the deadline. The read counts as slow at
    `hedge_at`, which is infinite if all other replicas have been tried.
    """

    number: int
    replica: Replica
    late_at: float
    hedge_at: float


@dataclass(frozen=True, slots=True)
class FetchMap:
    """Fetch the newest map."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Call `on_wake` at the time `at`."""

    at: float


ReadAction: TypeAlias = AskReplica | FetchMap | Wake


@dataclass(slots=True)
class _RangeRead:
    replicas: Sequence[Replica]
    asked: tuple[Replica, ...] = ()
    """Replicas that were sent a request and have not responded. There are two while the read is hedged."""
    tried: int = 0
    rounds: int = 1
    pause: float = FIRST_PAUSE
    """Seconds before the next round."""
    again_at: float | None = None
    """When the next round begins, or None while a round is in progress."""
    refused: bool = False
    """Whether a replica has reported in this round that it cannot be read yet."""


@dataclass(slots=True)
class RangeReads:
    """One request's reads from `version` in the `known` map, by range index."""

    known: ShardMap
    version: ShardedVersion
    choice: ReplicaChoice
    deadline: float
    late_after: float
    """Seconds after which a shard that has not responded is late."""
    outcome: Outcome | None = None
    unavailable: tuple[int, ...] = ()
    """If the outcome is `shard_unavailable`, the indices of the ranges for which no replica responded."""
    _until: float = inf
    """When the additional rounds for open ranges end."""
    _waiting: dict[int, _RangeRead] = field(default_factory=dict)
    _is_fetching: bool = False

    def start(self, numbers: Iterable[int], now: float) -> list[ReadAction]:
        """Begin the reads of these ranges. If there are none, the outcome is "done"."""
        actions: list[ReadAction] = []
        self._until = now + CATCH_UP_S
        for number in numbers:
            one = self._waiting[number] = _RangeRead(self.choice.order(self.version.ranges[number].replicas, now))
            actions += self._ask_next(number, one, now)
        if not self._waiting:
            self.outcome = "done"
        return actions

    def on_rows(self, number: int, replica: Replica) -> bool:
        """Report that the rows of a range have arrived. Returns whether to use them."""
        one = self._waiting.get(number)
        if one is None or replica not in one.asked or self.outcome is not None:
            return False
        self.choice.record_answer(replica.address)
        del self._waiting[number]
        if not self._waiting:
            self.outcome = "done"
        return True

    def hedge(self, number: int, now: float) -> AskReplica | None:
        """Return the next replica to try for a slow range, or None if no hedge is allowed."""
        one = self._waiting.get(number)
        if one is None or self.outcome is not None or len(one.asked) != 1 or one.tried == len(one.replicas):
            return None
        if not self.choice.may_hedge(one.asked[0].address, one.replicas[one.tried].address):
            return None
        return self._ask(number, one, now)

    def on_response_begin(self, number: int, replica: Replica) -> None:
        """Report that a replica's response has begun. The other request of a hedged read is dropped."""
        one = self._waiting.get(number)
        if one is not None and replica in one.asked:
            one.asked = (replica,)

    def on_failure(self, number: int, replica: Replica, now: float, why: str = "no answer") -> list[ReadAction]:
        """Report that a shard refused, disconnected, or was late."""
        one = self._waiting.get(number)
        if one is not None and replica in one.asked:
            self.choice.record_failure(replica.address, now, why)
        return self._on_refusal(number, replica, now)

    def on_missing_range(
        self, number: int, replica: Replica, now: float, *, is_stale: bool = False
    ) -> list[ReadAction]:
        """Report that a shard does not serve the range at the moment.

        `is_stale` means that the shard's data differs from the map's, or is older than a state that is already known.
        """
        one = self._waiting.get(number)
        if one is not None and is_stale:
            one.refused = True
        return self._on_refusal(number, replica, now)

    def _on_refusal(self, number: int, replica: Replica, now: float) -> list[ReadAction]:
        one = self._waiting.get(number)
        if one is None or replica not in one.asked:
            return []
        one.asked = tuple(other for other in one.asked if other != replica)
        return [] if one.asked else self._ask_next(number, one, now)

    def on_map_fetched(self, newest: ShardMap, now: float) -> list[ReadAction]:
        """Report that fetching the map has ended, successfully or not. `newest` is the router's newest map."""
        self._is_fetching = False
        if self.outcome is not None:
            return []
        if newest.generation > self.known.generation:
            self.known = newest
            found = newest.find_content(self.version.content_id)
            if found is None or not _has_same_ranges(found, self.version):
                self.outcome = "version_gone"
                return []
            self.version = found
            for one in self._waiting.values():
                if one.again_at is not None:
                    one.again_at = now
        return self.on_wake(now)

    def on_wake(self, now: float) -> list[ReadAction]:
        """Report the time `now`, and begin the rounds that are due."""
        if self.outcome is not None:
            return []
        if now >= self.deadline:
            self.outcome = "deadline_exceeded"
            return []
        if self._is_fetching:
            return []
        due = [
            (number, one) for number, one in self._waiting.items() if one.again_at is not None and one.again_at <= now
        ]
        for number, one in due:
            one.replicas = self.choice.order(self.version.ranges[number].replicas, now)
            one.tried, one.again_at, one.refused = 0, None, False
            one.rounds += 1
        return [action for number, one in due for action in self._ask_next(number, one, now)]

    def _ask(self, number: int, one: _RangeRead, now: float) -> AskReplica:
        replica, left = one.replicas[one.tried], len(one.replicas) - one.tried
        one.asked = (*one.asked, replica)
        one.tried += 1
        late_at = now + min(self.late_after, (self.deadline - now) / left)
        hedge_at = inf if left == 1 else now + self.choice.hedge_after(replica.address)
        return AskReplica(number, replica, late_at, hedge_at)

    def _ask_next(self, number: int, one: _RangeRead, now: float) -> list[ReadAction]:
        """Ask the next replica. If there is none, schedule the next round."""
        if self.outcome is not None:
            return []
        if now >= self.deadline:
            self.outcome = "deadline_exceeded"
            return []
        if one.tried < len(one.replicas):
            return [self._ask(number, one, now)]
        if one.rounds >= ROUNDS and not self._may_catch_up(number, one, now):
            self.outcome = "shard_unavailable"
            self.unavailable = tuple(
                sorted(other for other, read in self._waiting.items() if other == number or read.rounds >= ROUNDS)
            )
            return []
        one.again_at = min(now + one.pause, self.deadline)
        one.pause = min(2 * one.pause, LONGEST_PAUSE)
        actions: list[ReadAction] = [Wake(one.again_at)]
        if not self._is_fetching:
            self._is_fetching = True
            actions.append(FetchMap())
        return actions

    def _may_catch_up(self, number: int, one: _RangeRead, now: float) -> bool:
        return one.refused and now < self._until and self.version.ranges[number].primary is not None


def _has_same_ranges(one: ShardedVersion, other: ShardedVersion) -> bool:
    """Return whether two entries for the same version have the same ranges.

    A map file may divide the same version differently.
    """
    return [(part.start, part.stop) for part in one.ranges] == [(part.start, part.stop) for part in other.ranges]

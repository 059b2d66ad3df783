"""Decide which replicas may serve a read of an open range."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

READ_LEASE_S: Final = 15.0
"""Seconds for which a replica keeps serving after it began to read the newest catalogue, and after a record entered its
tail.

This bounds the staleness of reads.
"""
WAIT_S: Final = 0.1
"""Seconds that a replica waits to reach the sequence that a reader requires."""


class Read(StrEnum):
    """A replica's decision on a read."""

    SERVED = "served"
    BEHIND = "behind"
    """The replica is behind the sequence that the reader has already seen. It waits for WAIT_S seconds and then
    refuses.
    """
    NOT_IN_SYNC = "not_in_sync"
    CUT_OFF = "cut_off"
    """The replica has not read the catalogue for READ_LEASE_S seconds."""
    UNSETTLED = "unsettled"
    """The replica has had records for READ_LEASE_S seconds without learning whether they are committed; or the primary
    has not reported, since the replica's startup, what is committed.
    """


@dataclass(frozen=True, slots=True)
class Readable:
    """The state of a replica when a read arrives. Times are in seconds of a monotonic clock.

    `confirmed` is when the last successful read of the catalogue began. `is_in_sync` is what the newest known catalogue
    says. `tail_since` is when the oldest record in the replica's tail arrived. It is None if there is no tail, and -inf
    if the primary has not reported, since the replica's startup, what is committed.
    """

    is_in_sync: bool
    confirmed: float
    applied: int
    tail_since: float | None = None


def judge_read(replica: Readable, now: float, least: int = 0) -> Read:
    """Decide whether a replica may serve a read. `least` is the sequence that the client has seen."""
    if not replica.is_in_sync:
        return Read.NOT_IN_SYNC
    if now >= replica.confirmed + READ_LEASE_S:
        return Read.CUT_OFF
    if replica.tail_since is not None and now >= replica.tail_since + READ_LEASE_S:
        return Read.UNSETTLED
    return Read.BEHIND if replica.applied < least else Read.SERVED

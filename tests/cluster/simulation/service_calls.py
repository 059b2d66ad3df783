"""What routers, reconcilers and shards ask of a shard: HTTP in a cluster, here sent as messages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.shard.pull_order import PullOrder
from tests.cluster.simulation.truth import Items


@dataclass(frozen=True, slots=True)
class Write:
    """All rows of a segment, from the router that uploads them."""

    request_id: int
    tensor: str
    rows: Items


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for rows of a segment, by their numbers in it; without `rows` for all of them."""

    request_id: int
    tensor: str
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ListSegments:
    """Asks for what is whole, and shows a fence."""

    request_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class PullSegment:
    """Has a shard pull a segment."""

    request_id: int
    tensor: str
    order: PullOrder


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Has a shard drop a segment."""

    request_id: int
    tensor: str
    fence: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to any of these. `rows` and `segments` are None if it is not what was asked for."""

    request_id: int
    is_done: bool
    rows: Items | None = None
    segments: Mapping[str, HeldSegment] | None = None


Sent: TypeAlias = Write | Read | ListSegments | PullSegment | DropSegment | Answer

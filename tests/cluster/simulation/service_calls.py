"""What routers, reconcilers and shards ask of a shard: HTTP in a cluster, here sent as messages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.replication.primary import Join, JoinAnswer
from app.cluster.replication.replica import Append, AppendAnswer, CopyOrder
from app.cluster.shard.pull_order import PullOrder
from tests.cluster.simulation.scatter_truth import LogRecord, Scatter
from tests.cluster.simulation.truth import Items


@dataclass(frozen=True, slots=True)
class Write:
    """All rows of a segment, from the router that uploads them."""

    request_id: int
    tensor: str
    rows: Items


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for rows of a segment, by their numbers in it; without `rows` for all of them.

    `least` is the sequence that the reader has seen.
    """

    request_id: int
    tensor: str
    rows: tuple[int, ...] | None = None
    least: int = 0


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
class ScatterRange:
    """A scatter to one range, from a router to the primary."""

    request_id: int
    tensor: str
    scatter: Scatter


@dataclass(frozen=True, slots=True)
class ShipRecords:
    """Records, or a notice that there are more committed, from the primary to a replica."""

    request_id: int
    tensor: str
    append: Append
    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True)
class JoinRange:
    """A replica asks the primary to be in sync."""

    request_id: int
    tensor: str
    join: Join


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A replica asks another one for its rows, or for its keys."""

    request_id: int
    tensor: str
    what: Literal["rows", "keys"]


@dataclass(frozen=True, slots=True)
class JoinReply:
    """What the primary says to a replica that wants to join, with the records or the order to copy that go with it."""

    judged: JoinAnswer
    append: Append | None = None
    records: tuple[LogRecord, ...] = ()
    order: CopyOrder | None = None


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """The rows of a replica that are not 0, by number, at a sequence."""

    sequence: int
    values: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CopiedKeys:
    """The sequences of all keys that a replica has, those of its tail too."""

    keys: Mapping[str, int]


Reply: TypeAlias = AppendAnswer | JoinReply | CopiedRows | CopiedKeys | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to any of these. `rows` and `segments` are None if it is not what was asked for.

    `sequence` is that of an open range, `reply` what shards say to each other about one.
    """

    request_id: int
    is_done: bool
    rows: Items | None = None
    segments: Mapping[str, HeldSegment] | None = None
    sequence: int = 0
    reply: Reply = None


ToRange: TypeAlias = ScatterRange | ShipRecords | JoinRange | CopyRange
Asked: TypeAlias = Write | Read | ListSegments | PullSegment | DropSegment | ToRange
Sent: TypeAlias = Asked | Answer

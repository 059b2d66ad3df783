"""What routers and shards ask of the service on a machine: HTTP in a cluster, here sent as messages are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from app.cluster.coordinator.messages import Message, RangeKey
from tests.cluster.simulation.truth import Items


@dataclass(frozen=True, slots=True)
class Write:
    """All rows of a range, from the router that publishes them."""

    key: RangeKey
    size: int
    rows: Items


@dataclass(frozen=True, slots=True)
class Written:
    """The rows are whole and durable."""

    key: RangeKey
    node: str


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for rows of a range, by their numbers in the table; without `rows` for all of them, which a shard copies."""

    request_id: int
    key: RangeKey
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a `Read` asked for; None if the service does not have the range."""

    request_id: int
    rows: Items | None


ServiceCall: TypeAlias = Write | Written | Read | Rows
Sent: TypeAlias = Message | ServiceCall

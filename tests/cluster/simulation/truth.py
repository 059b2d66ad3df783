"""What is true in a simulated cluster, whoever says otherwise: the contents, and the records that are durable."""

from __future__ import annotations

from dataclasses import dataclass

from app.cluster.coordinator.messages import RangeKey

Items = tuple[tuple[str, int], ...]
"""Rows: each is the content that it is of, and its number."""


@dataclass(frozen=True)
class Content:
    """One upload of a table."""

    content_id: str
    table: str
    rows: int
    keep: int
    url: str


def rows_of(key: RangeKey) -> Items:
    """The rows of a range."""
    return tuple((key.content_id, row) for row in range(key.start, key.stop))


def digest_of(rows: Items) -> str:
    """Two ranges with equal digests have equal rows."""
    return f"{len(rows)}:{rows[0]}:{rows[-1]}" if rows else "0"

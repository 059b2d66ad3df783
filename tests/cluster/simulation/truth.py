"""What is true in a simulated cluster, whoever says otherwise: the rows of each content."""

from __future__ import annotations

from dataclasses import dataclass

Items = tuple[tuple[str, int], ...]
"""Rows: each is the content that it is of, and its number."""


class Violation(AssertionError):
    """Something that must not be."""


@dataclass(frozen=True)
class Content:
    """One upload of a table."""

    content_id: str
    table: str
    rows: int
    keep: int
    url: str


def rows_of(tensor: str) -> Items:
    """The rows of a segment, which its name says."""
    content_id, _, bounds = tensor.partition(".")
    start, _, stop = bounds.partition("-")
    return tuple((content_id, row) for row in range(int(start), int(stop)))


def digest_of(rows: Items) -> str:
    """Two segments with equal digests have equal rows."""
    return f"{len(rows)}:{rows[0]}:{rows[-1]}" if rows else "0"

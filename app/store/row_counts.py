"""The effect of an upsert or a removal by key on the rows of a table."""

from __future__ import annotations

from typing import NamedTuple


class RowCounts(NamedTuple):
    """The number of rows after a change, and how many distinct keys were inserted, removed, or missing."""

    rows: int
    inserted: int = 0
    removed: int = 0
    missing: int = 0

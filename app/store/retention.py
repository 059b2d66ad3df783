"""Which versions of a tensor are kept when another one is uploaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from app.store.catalogue.catalogue_rows import Row


def superseded(versions: Sequence[Row], keep: int, named: Collection[int]) -> list[Row]:
    """Those of `versions`, the oldest first, that go once one more is there and the `keep` newest stay.

    Versions whose numbers are in `named`, which aliases name, stay beside them.
    """
    older = versions[: max(0, len(versions) + 1 - keep)]
    return [row for row in older if row.version not in named]

"""Find damage in the index of a table's keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.store.catalogue.catalogue_rows import Row
from app.store.files.key_files import ROWS_AT_ONCE, MappedKeys


def lost_rows(folder: Path, row: Row, count: int) -> Iterator[int]:
    """Look up the keys of the first `count` rows in the index, step by step.

    Yields for each step the first row that the index does not find, or -1. `folder` is the folder of tensors. Raises
    BadFile and OSError.
    """
    mapped = MappedKeys(folder, row)
    keys = mapped.of(min(count, mapped.layout.capacity))
    for start in range(0, keys.count, ROWS_AT_ONCE):
        yield keys.first_lost(start, min(start + ROWS_AT_ONCE, keys.count))

"""Which blocks of a content's files have other bytes than their checksums say: those that logged records change."""

from __future__ import annotations

from collections.abc import Iterable

from app.store.files.key_layout import KeyLayout
from app.store.files.tensor_file import BLOCK
from app.store.scatters.log_frames import Record, changed_key_parts, changed_parts


def dirty_blocks(records: Iterable[Record]) -> set[int]:
    """The numbers of the 64 KiB blocks of the rows that records change."""
    blocks: set[int] = set()
    for record in records:  # one by one: they may be those of a long log
        blocks.update(changed_parts([record], BLOCK).tolist())
    return blocks


def dirty_key_blocks(
    records: Iterable[Record], layout: KeyLayout, heap_checked: int, heap_end: int | None = None
) -> set[int]:
    """The numbers of the blocks of the key file that records change, and those of the heap between two places.

    `heap_checked` is the word HEAP_CHECKED; without `heap_end` it is the whole heap from there on. Empty if no record
    changes keys.
    """
    blocks: set[int] = set()
    changes = False
    for record in records:
        changes = changes or record.changes_keys
        blocks.update(changed_key_parts([record], layout.width, BLOCK).tolist())
    if changes and layout.dtype == "string":
        first, last = layout.heap_at + heap_checked, layout.heap_at + (layout.heap if heap_end is None else heap_end)
        blocks.update(range(first // BLOCK, -(-last // BLOCK)))
    return blocks

"""Find the blocks in the files of a version whose checksums are out of date because logged records changed them."""

from __future__ import annotations

from collections.abc import Iterable

from app.store.files.key_layout import KeyLayout
from app.store.files.tensor_file import BLOCK
from app.store.scatters.log_frames import Record, changed_key_parts, changed_parts


def dirty_blocks(records: Iterable[Record]) -> set[int]:
    """Return the numbers of the 64 KiB blocks that hold rows changed by `records`."""
    blocks: set[int] = set()
    for record in records:  # one by one: a long log may not fit in memory
        blocks.update(changed_parts([record], BLOCK).tolist())
    return blocks


def dirty_key_blocks(records: Iterable[Record], layout: KeyLayout, heap_checked: int, heap_end: int) -> set[int]:
    """Return the blocks of the key file that records change, and all blocks beyond the end of the heap.

    A repair may have written keys beyond the end and later others before it: see `WritableKeys.heap_start`.
    `heap_checked` and `heap_end` are the words HEAP_CHECKED and HEAP_END.
    """
    changed = dirty_table_blocks(records, layout, heap_checked, layout.heap)[1] or set()
    if layout.dtype == "string":
        changed.update(range(-(-(layout.heap_at + heap_end) // BLOCK), -(-layout.size // BLOCK)))
    return changed


def dirty_table_blocks(
    records: Iterable[Record], layout: KeyLayout, heap_checked: int, heap_end: int
) -> tuple[set[int], set[int] | None]:
    """Return the blocks of the rows and of the key file that records change; None for the latter if no keys change.

    If keys change, all blocks of the heap from `heap_checked` to `heap_end` are included.
    """
    blocks, key_blocks = set[int](), set[int]()
    changes = False
    for record in records:
        changes = changes or record.changes_keys
        blocks.update(changed_parts([record], BLOCK).tolist())
        key_blocks.update(changed_key_parts([record], layout.width, BLOCK).tolist())
    if not changes:
        return blocks, None
    if layout.dtype == "string":
        first, last = layout.heap_at + heap_checked, layout.heap_at + heap_end
        key_blocks.update(range(first // BLOCK, -(-last // BLOCK)))
    return blocks, key_blocks

"""Redo records, and the frames that contain them in logs and in transfers to other machines.

A frame consists of a magic, the CRC-32 of everything after it, the length of the JSON, the length of the data, the
JSON, which is a list of entries, and then the data of each entry:

- the row numbers (uint64) and the rows
- the numbers of the rows that get a different key (uint64), and those keys: 8-byte integers, or string lengths (uint64)
  followed by the strings in UTF-8

If records in a log have changed a block, the block's checksum is out of date; see `dirty_blocks`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from struct import Struct
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn, KeyType
from app.store.files.key_files import KeyLayout
from app.store.files.regular_file import read_at
from app.store.files.tensor_file import BLOCK
from app.tensors.buffer_type import Buffer

FRAME: Final = Struct("<4sIIQ")
"""The struct at the start of a frame."""
FRAME_MAGIC: Final = b"redo"
_CHECKED_FROM: Final = 8
_SIZES: Final = Struct("<IQ")


class BrokenLog(Exception):
    """A log contains a damaged record before sound ones, so acknowledged changes are lost."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of a record.

    `time` is in nanoseconds since 1970; `clock` is the time on the store's own clock (see `idempotency`). `width` is
    the size of a row in bytes. `scope` is the name by which the request referred to the tensor, and `version` is the
    number of the version. `epoch` is the epoch of the primary that created the record, or 0 if the version is not
    replicated.

    The remaining fields describe upserts and removals by key. `size` is the number of rows after the change.
    `key_count` is the number of rows that get a different key, `key_type` is the type of those keys, and `key_bytes` is
    their size in the record. `counts` holds the row counts returned to the caller (see `RowCounts`).
    """

    sequence: int
    time: int
    key: str | None
    digest: str
    etag: str
    count: int = 0
    width: int = 0
    clock: int = 0
    scope: str = ""
    version: int = 1
    epoch: int = 0
    size: int | None = None
    key_count: int = 0
    key_type: KeyType = "int64"
    key_bytes: int = 0
    counts: tuple[int, ...] | None = None

    @property
    def string_bytes(self) -> int:
        """The size of the record's string keys in bytes, not counting their lengths."""
        return self.key_bytes - 8 * self.key_count if self.key_type == "string" else 0


NO_ROWS: Final = np.empty(0, np.uint64)
_NO_VALUES: Final = np.empty((0, 0), np.uint8)
NO_KEYS: Final = KeyColumn.integers(np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Record:
    """An entry and its rows: the bytes `values[i]` become row `rows[i]` of the content.

    In a keyed table, row `key_rows[i]` also gets the key `keys[i]`, and the table has `entry.size` rows afterwards.
    """

    entry: Entry
    rows: NDArray[np.uint64]
    values: NDArray[np.uint8]
    key_rows: NDArray[np.uint64] = field(default_factory=lambda: NO_ROWS)
    keys: KeyColumn = NO_KEYS

    @property
    def changes_keys(self) -> bool:
        """Whether the record is an upsert or a removal, and so adds rows, removes rows or changes their keys."""
        return self.entry.size is not None


def changed_parts(records: Iterable[Record], size: int) -> NDArray[np.int64]:
    """Return which `size`-byte parts of the content `records` change, sorted and without duplicates."""
    return _parts(((record.rows, record.entry.width) for record in records), size)


def changed_key_parts(records: Iterable[Record], width: int, size: int) -> NDArray[np.int64]:
    """Return which `size`-byte parts of a key file `records` change. A key takes `width` bytes."""
    return _parts(((record.key_rows, width) for record in records), size)


def _parts(changed: Iterable[tuple[NDArray[np.uint64], int]], size: int) -> NDArray[np.int64]:
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for rows, width in changed:
        if not len(rows) or not width:
            continue
        begin = rows.astype(np.int64) * width
        first, last = begin // size, (begin + width - 1) // size
        found.append(first)
        if (last > first).any():
            spans = last - first + 1
            starts = np.cumsum(spans) - spans
            found.append(np.repeat(first - starts, spans) + np.arange(int(spans.sum())))
    return np.unique(np.concatenate(found))


def encode(records: Sequence[Record]) -> bytes:
    """Return the bytes of one frame that contains `records`."""
    text = orjson.dumps([_entry_members(record.entry) for record in records])
    arrays: list[NDArray[Any]] = []
    for record in records:
        arrays += (record.rows, record.values, *_key_arrays(record))
    size = sum(array.nbytes for array in arrays)
    rest: list[Any] = [_SIZES.pack(len(text), size), text, *map(np.ascontiguousarray, arrays)]
    crc = 0
    for part in rest:
        crc = zlib.crc32(part, crc)
    return b"".join((FRAME_MAGIC, crc.to_bytes(4, "little"), *rest))  # copy just once, because the arrays may be large


def _entry_members(entry: Entry) -> dict[str, Any]:
    members = asdict(entry)
    if entry.size is None:
        for name in _OF_KEYS:
            del members[name]
    return members


def _key_arrays(record: Record) -> tuple[NDArray[Any], ...]:
    if not len(record.key_rows):
        return ()
    keys = record.keys.packed()
    if keys.dtype != "string":
        return record.key_rows, keys.keys
    return record.key_rows, np.diff(keys.offsets), keys.keys


def key_bytes(keys: KeyColumn) -> int:
    """Return the number of bytes that `keys` take in a record."""
    return 8 * len(keys) + string_bytes(keys)


def string_bytes(keys: KeyColumn) -> int:
    """Return the total size of a column's strings in bytes, or 0 for integers."""
    if keys.dtype != "string":
        return 0
    starts, stops = keys.bounds()
    return int((stops - starts).sum())


def frame_size(content: Buffer, place: int = 0) -> int:
    """Return the size in bytes of the frame at the offset `place`, or 0 if no frame starts there."""
    if place + FRAME.size > len(content):
        return 0
    magic, _, text_size, rows_size = FRAME.unpack_from(content, place)
    return FRAME.size + int(text_size) + int(rows_size) if magic == FRAME_MAGIC else 0


def is_whole(frame: Buffer) -> bool:
    """Return whether the checksum of a frame is correct. The frame must have the size that its header specifies."""
    with memoryview(frame) as view:
        return zlib.crc32(view[_CHECKED_FROM:]) == int(FRAME.unpack_from(view)[1])


def frame_at(fd: int, place: int, end: int) -> bytes:
    """Return the frame at offset `place` of a file, or empty bytes if there is no sound frame.

    Bytes from the offset `end` on are ignored. Raises OSError.
    """
    size = frame_size(os.pread(fd, FRAME.size, place))
    frame = read_at(fd, place, size) if size and place + size <= end else b""
    return frame if len(frame) == size and frame and is_whole(frame) else b""


def frames_in(content: bytes) -> Iterator[bytes]:
    """Split `content` into its frames. Raises BrokenLog unless it consists of whole, sound frames."""
    place = 0
    while place < len(content):
        size = frame_size(content, place)
        frame = content[place : place + size]
        if not size or len(frame) != size or not is_whole(frame):
            raise BrokenLog
        yield frame
        place += size


def holds_record(content: bytes) -> bool:
    """Return whether `content` contains a sound frame at any offset."""
    place = content.find(FRAME_MAGIC)
    while place >= 0:
        size = frame_size(content, place)
        if size and place + size <= len(content) and is_whole(content[place : place + size]):
            return True
        place = content.find(FRAME_MAGIC, place + 1)
    return False


def decode(frame: bytes) -> Iterator[Record]:
    """Yield the records of a sound frame, ignoring unknown members of an entry. Raises BrokenLog."""
    place, text_size = FRAME.size, FRAME.unpack_from(frame)[2]
    try:
        entries: list[dict[str, Any]] = orjson.loads(frame[place : place + text_size])
        known = [Entry(**{name: entry[name] for name in _MEMBERS & entry.keys()}) for entry in entries]
    except (ValueError, TypeError, AttributeError):
        raise BrokenLog from None
    place += text_size
    sizes = (entry.count * (8 + entry.width) + 8 * entry.key_count + entry.key_bytes for entry in known)
    if place + sum(sizes) > len(frame):
        raise BrokenLog
    for entry in known:
        rows, values = NO_ROWS, _NO_VALUES
        if entry.count:
            rows = np.frombuffer(frame, np.uint64, entry.count, place)
            place += rows.nbytes
            values = np.frombuffer(frame, np.uint8, entry.count * entry.width, place)
            place += values.nbytes
            values = values.reshape(entry.count, entry.width)
        if not entry.key_count:
            yield Record(entry, rows, values)
            continue
        key_rows = np.frombuffer(frame, np.uint64, entry.key_count, place)
        place += key_rows.nbytes
        yield Record(
            entry, rows, values, key_rows, _parse_keys(entry, np.frombuffer(frame, np.uint8, entry.key_bytes, place))
        )
        place += entry.key_bytes


def _parse_keys(entry: Entry, octets: NDArray[np.uint8]) -> KeyColumn:
    """Return the keys of a record as a column. Raises BrokenLog."""
    heads = octets[: 8 * entry.key_count].copy()
    if len(heads) != 8 * entry.key_count:
        raise BrokenLog
    if entry.key_type != "string":
        return KeyColumn.integers(heads.view(np.int64 if entry.key_type == "int64" else np.uint64))
    offsets = np.zeros(entry.key_count + 1, np.int64)
    np.cumsum(heads.view(np.int64), out=offsets[1:])
    keys = KeyColumn.strings(offsets, octets[8 * entry.key_count :])
    if keys.first_bad_offset() >= 0:
        raise BrokenLog
    return keys


_MEMBERS: Final = frozenset(one.name for one in fields(Entry))
_OF_KEYS: Final = ("size", "key_count", "key_type", "key_bytes", "counts")
"""Members that only the entries of upserts and removals have."""


def dirty_blocks(records: Iterable[Record]) -> set[int]:
    """Return the numbers of the 64 KiB blocks that contain rows changed by `records`."""
    blocks: set[int] = set()
    for record in records:  # one at a time, because a long log may not fit in memory
        blocks.update(changed_parts([record], BLOCK).tolist())
    return blocks


def dirty_key_blocks(records: Iterable[Record], layout: KeyLayout, heap_checked: int, heap_end: int) -> set[int]:
    """Return the key-file blocks that records change, and all blocks beyond the end of the heap.

    A repair may have written keys beyond the end and, after that, other keys before the end; see
    `WritableKeys.heap_start`. `heap_checked` and `heap_end` are the words HEAP_CHECKED and HEAP_END.
    """
    changed = dirty_table_blocks(records, layout, heap_checked, layout.heap)[1] or set()
    if layout.dtype == "string":
        changed.update(range(-(-(layout.heap_at + heap_end) // BLOCK), -(-layout.size // BLOCK)))
    return changed


def dirty_table_blocks(
    records: Iterable[Record], layout: KeyLayout, heap_checked: int, heap_end: int
) -> tuple[set[int], set[int] | None]:
    """Return the changed blocks of the row file and of the key file. The latter are None if no keys change.

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

"""A scatter, upsert or removal that a router sends to the primary of one range, and the primary's response.

The body of `POST /shard/ranges/{tensor}/scatter` has three parts: a line of JSON, padded with spaces so that the rest
of the body is aligned to 8 bytes; the row numbers (little-endian int64); and the updates (row-major, little-endian).

An upsert or removal has keys instead of row numbers: integers, or strings in BYTES framing, padded with zeros to a
multiple of 8 bytes. A shard from an older release ignores `key_count`, so it finds the body too long and refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from app.cluster.shard.pull_order import Count, read_order
from app.cluster.shard_map import DTypeByName
from app.errors import GatherError, invalid_field
from app.keys.key_column import KeyColumn, KeyType
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.files.key_pieces import framed_pieces
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import Reduction
from app.tensors.string_frames import read_frames
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

MOST_HEAD: Final = 1 << 12
"""Maximum size of the JSON line, in bytes."""


@dataclass(frozen=True, slots=True)
class ScatterOrder:
    """The parsed JSON line: `count` updates of `width` items each, combined by `reduction`.

    With the range viewed as [slices, width], update i is applied to the slice at the i-th row number. `epoch` is the
    newest epoch known to the router. `key` is always set; the router generates one if its caller sent none. `digest`
    tells the whole request apart from other requests with the same key. If `if_sequence` is set, the scatter is applied
    only if the range is at that sequence.

    If `key_type` is set, this is an upsert of `key_count` rows by keys of that type. If `removes` is also true, it is a
    removal of those rows and has no updates. The keys occupy `key_bytes` bytes, and `count` is 0.
    """

    epoch: Count
    dtype: DTypeByName
    count: Count
    width: Count
    reduction: Reduction
    key: str
    digest: str
    if_sequence: Count | None = None
    key_type: KeyType | None = None
    key_count: Count = 0
    key_bytes: Count = 0
    removes: bool = False

    @property
    def change_count(self) -> int:
        """Number of rows or keys in the order."""
        return self.count if self.key_type is None else self.key_count


@dataclass(frozen=True, slots=True)
class RangeScatter:
    """A scatter to one range. `rows` are int64 and within the range; `updates` are flat items of the range's type.

    A change by key has one-dimensional `keys` and no rows.
    """

    order: ScatterOrder
    rows: NDArray[np.int64]
    updates: NDArray[Any]
    keys: Tensor | None = None

    def pieces(self) -> list[Buffer]:
        """Return the pieces of the body. The arrays are not copied."""
        head = _ORDER.dump_json(self.order)
        head += b" " * (-(len(head) + 1) % 8) + b"\n"
        named: list[NDArray[Any]] = [np.ascontiguousarray(self.rows, "<i8")]
        if isinstance(self.keys, PackedStrings):
            named = [self.keys.octets, np.zeros(-self.keys.octets.size % 8, np.uint8)]
        elif self.keys is not None:
            named = [np.ascontiguousarray(self.keys.array)]
        arrays = (*named, np.ascontiguousarray(self.updates))
        return [head, *(one.reshape(-1).view(np.uint8).data for one in arrays if one.size)]

    @staticmethod
    def from_body(body: Buffer) -> RangeScatter:
        """Parse a body. The arrays share its memory. Raises invalid_field."""
        line = bytes(memoryview(body)[:MOST_HEAD])
        end = line.find(b"\n")
        if end < 0:
            raise invalid_field("/body", f"the first {MOST_HEAD} bytes have no end of a line")
        order = read_order(_ORDER, line[:end])
        if order.count and order.key_type is not None:
            raise invalid_field("/count", "a change by key names no rows")
        start, items = end + 1, 0 if order.removes else order.change_count * order.width
        named = order.key_bytes + -order.key_bytes % 8 if order.key_type == "string" else 8 * order.change_count
        middle = start + named
        if len(body) != middle + items * order.dtype.item_size:
            raise _wrong_size(len(body), order)
        updates = np.frombuffer(body, order.dtype.numpy, items, middle)
        if order.key_type is None:
            return RangeScatter(order, np.frombuffer(body, np.int64, order.count, start), updates)
        return RangeScatter(order, NO_ROWS, updates, _parse_keys(order, order.key_type, body, start))


@dataclass(frozen=True, slots=True)
class RangeScattered:
    """A primary's response: the range is at `sequence` and `epoch`.

    `repeated` means that an earlier request with the same key already applied the scatter and left the range at
    `sequence`. `refused` means that the range is not at `if_sequence` and nothing was done. `counts` are the
    `RowCounts` of an upsert or removal.
    """

    sequence: Count
    epoch: Count
    repeated: bool = False
    refused: bool = False
    counts: RowCounts | None = None

    def to_json(self) -> bytes:
        """Return the response body."""
        return _ANSWER.dump_json(self)

    @staticmethod
    def from_json(body: Buffer) -> RangeScattered:
        """Parse a response body. Raises ValueError."""
        return _ANSWER.validate_json(bytes(body), extra="ignore")


NO_ROWS: Final = np.empty(0, np.int64)
_ORDER: Final = TypeAdapter(ScatterOrder)
_ANSWER: Final = TypeAdapter(RangeScattered)


def keys_of(column: KeyColumn) -> tuple[Tensor, int]:
    """Return keys in the form that a RangeScatter requires, and their size in bytes. Strings are copied."""
    count = len(column)
    if column.dtype != "string":
        return Tensor(DTYPES[column.dtype], (count,), column.keys), 8 * count
    pieces = list(framed_pieces(column.rows, 0, count))
    octets = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    starts = np.empty(count, np.int64)
    read_frames.run(octets, count, starts)
    return PackedStrings(DTYPES["string"], (count,), starts, octets=octets), octets.size


def _parse_keys(order: ScatterOrder, key_type: KeyType, body: Buffer, start: int) -> Tensor:
    """Return the keys of a body whose size has been checked. Raises invalid_field."""
    if key_type != "string":
        dtype = DTYPES[key_type]
        return Tensor(dtype, (order.key_count,), np.frombuffer(body, dtype.numpy, order.key_count, start))
    octets = np.frombuffer(body, np.uint8, order.key_bytes, start)
    if order.key_count > order.key_bytes:  # each string has a frame header
        raise _wrong_size(len(body), order)
    starts = np.empty(order.key_count, np.int64)
    octets.flags.writeable = False
    found, fault, wrong = read_frames.run(octets, order.key_count, starts)
    if fault or wrong >= 0 or found != order.key_count:
        raise invalid_field("/keys", "the keys are not framed strings of UTF-8")
    return PackedStrings(DTYPES["string"], (order.key_count,), starts, octets=octets)


def _wrong_size(size: int, order: ScatterOrder) -> GatherError:
    what = f"{order.change_count} updates of {order.width} items of {order.dtype.name}"
    return invalid_field("/body", f"the body has {size} bytes, which is not what {what} take")

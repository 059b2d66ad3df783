"""Write a version of a table with keys. While rows are still arriving, each one goes to the range of its key's hash.

A shard receives a segment as a separate table with keys, as safetensors: first the keys, then the rows, both in upload
order. The keys are read from their file whenever they are needed, a slice at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.api.route_table import path_of
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Options, Segment
from app.cluster.key_placement import KeyPlacement, first_hashes, hash_bounds
from app.cluster.router.running_uploads import RunningUploads
from app.cluster.router.segment_writer import SegmentBody, ShardAccess
from app.cluster.router.version_writer import VersionWriter, ranges_for
from app.formats.body_formats import SAFETENSORS_FILE
from app.formats.safetensors.upload import keys_head
from app.keys.index_layout import index_bytes
from app.keys.key_column import KeyColumn
from app.store.files.key_files import KeyLayout
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.keys_spec import KeysSpec

_KEYS_AT_ONCE: Final = 1 << 15
_STRINGS_AT_ONCE: Final = 1 << 20
"""Maximum bytes of strings in a slice."""
_LONG_ROW: Final = 1 << 16
"""Rows of at least this many bytes are sent as they arrive. Shorter rows are first sorted by range."""


class KeyedVersionWriter(VersionWriter):
    """A version with keys that is being written; see `VersionWriter`. `column` holds the keys, one for each row."""

    keys: KeyPlacement

    def __init__(
        self,
        client: CatalogueClient,
        access: ShardAccess,
        table: str,
        dtype: DType,
        shape: tuple[int, ...],
        column: KeyColumn,
        keys: KeyPlacement,
        uploads: RunningUploads,
        replicas: int | None = None,
    ) -> None:
        """Assign the segments to shards. Raises the errors of `transitions.begin_upload`."""
        self.keys = keys
        self._column = column
        self._row = row = prod(shape[1:]) * dtype.item_size
        self._item = dtype
        self._cut: Sequence[Segment] = ()
        self._specs: Sequence[KeysSpec] = ()
        self._incomplete = b""
        """The bytes of a row that has only partly arrived."""
        self._is_begun = False
        super().__init__(client, access, table, dtype, shape, lambda number: number * row, uploads, replicas)

    def _parts(self, options: Options) -> Sequence[Segment]:
        """Return segments with equal shares of the hashes.

        A transition may call this method more than once, so the keys are counted only the first time.
        """
        whole = KeysSpec(self._column.dtype, self._column.count, _string_bytes(self._column))
        bounds = hash_bounds(ranges_for(self._size_of(whole), options))
        if [(one.start, one.stop) for one in self._cut] != bounds:
            self._specs = self._count_keys(first_hashes([start for start, _ in bounds]))
            self._cut = [
                Segment(*bound, self._size_of(spec), rows=spec.count)
                for bound, spec in zip(bounds, self._specs, strict=True)
            ]
        return self._cut

    def _size_of(self, keys: KeysSpec) -> int:
        """Return the number of bytes that rows with these keys take on disk: rows, keys and index."""
        of_keys = KeyLayout(keys.dtype, keys.count, keys.string_bytes).size
        return keys.count * self._row + of_keys + index_bytes(keys.count)

    def _count_keys(self, starts: NDArray[np.uint64]) -> list[KeysSpec]:
        """Return the number of keys of each range, and the bytes of its strings."""
        counts, octets = np.zeros((2, len(starts)), np.int64)
        for part in _slices(self._column):
            numbers = self.keys.range_numbers(part, starts)
            counts += np.bincount(numbers, minlength=len(starts))
            if part.dtype == "string":
                begin, end = part.bounds()
                octets += np.bincount(numbers, end - begin, len(starts)).astype(np.int64)
        pairs = zip(counts.tolist(), octets.tolist(), strict=True)
        return [KeysSpec(self._column.dtype, count, size) for count, size in pairs]

    def _body(self, segment: Segment) -> SegmentBody:
        spec = self._spec_of(segment)
        size = len(self._head(segment)) + spec.size + spec.count * self._row
        path = f"{path_of('putTensor', name=self._tensor(segment))}?keep=1"
        return SegmentBody(path, SAFETENSORS_FILE.media_type, size, segment.size, spec.count)

    def _spec_of(self, segment: Segment) -> KeysSpec:
        return self._specs[next(n for n, one in enumerate(self._cut) if one.start == segment.start)]

    def _head(self, segment: Segment) -> bytes:
        shape = segment.shape(self._shape)
        return keys_head(self._spec_of(segment), (self._item, shape, segment.row_count * self._row))

    # Sending

    def begin(self) -> None:
        """Send the keys to their shards."""
        for segment in self._segments:
            self._begin(segment)
        self._starts = first_hashes([one.start for one in self._segments])
        for segment in self._segments:
            self._send(segment.start, self._head(segment))
        if self._column.dtype == "string":
            self._send_offsets()
        for part in _slices(self._column):
            for start, keys in self._split_by_range(part):
                self._send(start, keys.keys.tobytes())

    def _send_offsets(self) -> None:
        """Send, for each range, the offsets of its strings within the range's string bytes."""
        ends = {one.start: 0 for one in self._segments}
        for start in ends:
            self._send(start, bytes(8))
        for part in _slices(self._column):
            for start, keys in self._split_by_range(part):
                offsets = ends[start] + keys.offsets[1:]
                ends[start] = int(offsets[-1])
                self._send(start, offsets.tobytes())

    def _split_by_range(self, part: KeyColumn) -> Iterator[tuple[int, KeyColumn]]:
        """Yield the start of each range with the range's keys from a slice. Ranges without keys are skipped."""
        order, bounds = self._sort_by_range(part)
        for start, begin, end in bounds:
            yield start, part.take(order[begin:end])

    def _sort_by_range(self, part: KeyColumn) -> tuple[NDArray[np.int64], list[tuple[int, int, int]]]:
        """Return the order that sorts a slice's keys by range, and where each non-empty range begins and ends in it."""
        numbers = self.keys.range_numbers(part, self._starts)
        ends = np.cumsum(np.bincount(numbers, minlength=len(self._starts))).tolist()
        bounds = zip((one.start for one in self._segments), [0, *ends], ends, strict=False)
        return np.argsort(numbers, kind="stable"), [one for one in bounds if one[1] < one[2]]

    def _send(self, start: int, piece: Buffer) -> None:
        """Pass bytes to all shards of the segment that begins at `start`.

        Empty pieces are skipped because an empty piece would end the segment.
        """
        for writer in self._writers[start] if len(piece) else ():
            writer.write(piece)

    def write(self, piece: Buffer) -> None:
        """Write the next bytes of rows in their final form."""
        if self._row >= _LONG_ROW or not self._row:
            self._write_long(memoryview(piece).cast("B"))
            return
        octets = np.frombuffer(self._incomplete + bytes(piece), np.uint8)
        whole = len(octets) // self._row
        self._incomplete = octets[whole * self._row :].tobytes()
        rows = octets[: whole * self._row].reshape(whole, self._row)
        first = self._place // self._row
        for begin in range(0, whole, _KEYS_AT_ONCE):
            end = min(begin + _KEYS_AT_ONCE, whole)
            order, bounds = self._sort_by_range(self._column.rows(first + begin, first + end))
            ordered = rows[begin:end][order]
            for start, low, high in bounds:
                self._send(start, ordered[low:high].reshape(-1).data)
        self._place += whole * self._row
        self._check_all()

    def _write_long(self, view: memoryview) -> None:
        while view.nbytes:
            row, sent = divmod(self._place, self._row)
            (number,) = self.keys.range_numbers(self._column.rows(row, row + 1), self._starts)
            part = view[: self._row - sent]
            self._send(self._segments[number].start, part)
            self._place += len(part)
            view = view[len(part) :]
        self._check_all()

    def _check_all(self) -> None:
        """Raise an error unless each segment has a shard that still accepts it."""
        for segment in self._segments:
            self._check(segment)

    def finish(self) -> None:
        """Wait until each segment is complete and durable on all its shards.

        Call this after all bytes have been written.
        """
        for segment in self._segments:
            for writer in self._writers[segment.start]:
                writer.end()
        for segment in tuple(self._segments):
            self._finish(segment)


def _slices(column: KeyColumn) -> Iterator[KeyColumn]:
    """Yield slices of a column, limited in their number of keys and bytes of strings. Each has at least one key."""
    stop = 0
    while stop < column.count:
        start, stop = stop, min(stop + _KEYS_AT_ONCE, column.count)
        if column.dtype == "string":
            begin, end = column.rows(start, stop).bounds()
            full = int(np.cumsum(end - begin).searchsorted(_STRINGS_AT_ONCE, "right"))
            stop = start + min(max(full, 1), stop - start)
        yield column.rows(start, stop)


def _string_bytes(column: KeyColumn) -> int:
    """Return the total bytes of all strings, or 0 for integers."""
    if column.dtype != "string":
        return 0
    return sum(int((end - begin).sum()) for begin, end in (part.bounds() for part in _slices(column)))

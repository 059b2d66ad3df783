"""Run a request by key: fetch the rows of its distinct keys into a small table, and run the request on that table.

The code for a single machine then runs on the small table. A requested key is in the small table if and only if it is
in the large table, so missing keys, padding, fills and bags give the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.fetch_rows import LostRange, TableReads
from app.cluster.router.key_columns import column_of
from app.cluster.router.range_requests import Output, key_requests
from app.cluster.router.shard_resources import NeedingPlaces, ShardResources
from app.cluster.router.sharded_tensors import ShardedResident, without_positions
from app.errors import REPORTED_PLACES, Place
from app.keys.index_layout import index_bytes
from app.keys.key_index import build, new_seed
from app.memory.budget import Memory
from app.services.find_rows import FEW_KEYS, value_of
from app.store import Resident
from app.store.files.key_files import ResidentKeys
from app.telemetry.served_request import ServedRequest
from app.tensors.by_key import ByKey, NamedRow
from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates

_KEY_BYTES: Final = 160
"""Upper bound on the number of bytes per key, in addition to the key's own bytes and the index."""


class KeyedRead:
    """The distinct keys that a request looks up in one table, grouped by range, and the rows fetched for them.

    Creating a KeyedRead takes one pass over the keys.
    """

    def __init__(
        self, resident: ShardedResident, given: Sequence[Tensor], resources: ShardResources, memory: Memory
    ) -> None:
        """Find the distinct keys and build the requests.

        `given` holds all keys to look up; `numbers` is in the same order.
        """
        version, dtype = resident.version_in_map, resident.tensor.dtype
        assert version.keys is not None
        self.resident = resident
        memory.charge(bytes_to_read(given))
        column = column_of(given, version.keys.dtype)
        index, _ = build(column, new_seed())
        first = index.find(column, column)
        distinct = np.flatnonzero(first == np.arange(len(column)))
        self.numbers = version.keys.range_numbers(column, version.first_hashes)
        """The range index of each key."""
        own = self.numbers[distinct]
        self._keys = column.take(distinct[np.argsort(own, kind="stable")])
        self.count = len(distinct)
        self._found = np.zeros(self.count, np.bool_)
        row_items = prod(version.shape[1:])
        memory.charge(self.count * row_items * dtype.item_size)
        self._items: NDArray[Any] = resources.outputs.empty(self.count * row_items, dtype.carrier)
        output = Output(dtype, None, row_items, memory, resources.limits.output_bytes)
        counts = np.bincount(own, minlength=len(version.ranges))
        octets = self._items.view(np.uint8)
        requests = key_requests(self._keys, counts.tolist(), output, octets, self._found, version.shape[1:])
        self.reads = TableReads(resident, requests)

    def table(self, etag: str) -> Resident:
        """Return a table of the keys that were found and their rows. Takes one pass over the keys."""
        dtype = self.resident.tensor.dtype
        tensor = Tensor(dtype, (self.count, *self.resident.tensor.shape[1:]), self._items.view(dtype.numpy))
        index, _ = build(self._keys, new_seed())
        index.remove(self._keys, np.flatnonzero(~self._found))
        keys = ResidentKeys(self._keys, index)
        return Resident(tensor, etag, data_version=self.resident.data_version, keys=keys)

    def needing_places(self, keys: Tensor, begin: int, lost: LostRange) -> NeedingPlaces:
        """Return the places where a request has keys of a lost range.

        `keys` are keys of the request, starting at index `begin`.
        """
        own = np.flatnonzero(self.numbers[begin : begin + keys.array.size] == lost.number)
        places = [
            (item, Place(keys.locate(item), coordinates(item, keys.shape), value_of(keys, item)))
            for item in own[:REPORTED_PLACES].tolist()
        ]
        return NeedingPlaces(places, len(own))


async def fetch_tables(
    reads: Mapping[int, KeyedRead], resources: ShardResources, request: ServedRequest
) -> dict[int, Resident] | list[LostRange]:
    """Fetch all rows. Returns the tables, or the ranges for which no replica responded.

    In those ranges, `LostRange.reads` is the position in `reads`.
    """
    wanted = [one.reads for one in reads.values()]
    lost = await resources.fetcher.fetch(wanted, request) if any(one.requests for one in wanted) else []
    if lost:
        return lost
    etags = {key: resources.fetcher.etag_of(one.resident, one.reads.read) for key, one in reads.items()}
    return await resources.pool.run_unless(
        sum(one.count for one in reads.values()) <= FEW_KEYS,
        lambda: {key: one.table(etags[key]) for key, one in reads.items()},
        request,
    )


def bytes_to_read(given: Iterable[Tensor]) -> int:
    """Return an upper bound on the number of bytes that a `KeyedRead` uses in addition to the rows."""
    size = 0
    for one in given:
        count = one.array.size
        size += _KEY_BYTES * count + index_bytes(count)
        size += 4 * one.octets.size if isinstance(one, PackedStrings) else 0
    return size


def row_key(row: NamedRow | None, dtype: str) -> list[Tensor]:
    """Return a one-item list with the key that selects the row, or an empty list if there is none.

    Raises value_not_representable.
    """
    return [] if row is None or row.key is None else [row.key.item(DTYPES[dtype])]


def check_by_key(row: NamedRow | None, name: str) -> None:
    """Raise not_implemented if a request refers to a row by position."""
    if row is not None and row.position is not None:
        raise without_positions(name, row.pointer, f'Name a key at {row.pointer}, as in {{"key": 7}}.')


def check_keyed(resident: Resident, by_key: ByKey | None, name: str, indices: Tensor) -> None:
    """Raise not_implemented if a request refers to rows by position in a table that places rows by key."""
    if not isinstance(resident, ShardedResident) or resident.keys is None:
        return
    if by_key is None:
        raise without_positions(name, indices.pointer or None, "Send 'keys' in place of 'indices'.")
    check_by_key(by_key.missing_row, name)

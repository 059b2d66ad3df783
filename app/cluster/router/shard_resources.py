"""Shared parts of gathers and lookups on tables in row ranges: fetching rows, explaining ranges, reporting lost
ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.cluster.router.fetch_rows import LostRange, RowFetcher
from app.cluster.router.key_columns import column_of
from app.cluster.router.sharded_tensors import ShardedResident
from app.dispatch.choose_backend import LARGE_INDEX_SCAN
from app.errors import REPORTED_PLACES, GatherError, Place
from app.services.call_resources import CallResources
from app.services.runner import Explanation
from app.store import Resident
from app.telemetry.served_request import ServedRequest
from app.tensors.tensor import Tensor, coordinates

ROUTE: Final = "shards"
"""The name, in metrics, of the route for gathers and lookups on row ranges."""
SPLIT_BYTES: Final = 48
"""Bytes per index while indices are split: the int64, the sorted index, its position, and its copy in a request."""


class ShardResources(CallResources):
    """The resources that a router's runners share. `fetcher` fetches rows from the shards."""

    fetcher: RowFetcher


async def add_ranges(
    found: Explanation,
    rows: Sequence[NDArray[Any] | Tensor | None],
    resources: ShardResources,
    request: ServedRequest,
    *,
    wrap: bool = False,
) -> Explanation:
    """Add ranges to an explanation: those that each resident's rows or keys need, or all ranges for None."""
    arrays = [each.array if isinstance(each, Tensor) else each for each in rows]
    count = sum(len(each) for each in arrays if each is not None)
    request.memory.charge(SPLIT_BYTES * count)
    shards = await resources.pool.run_unless(
        count < LARGE_INDEX_SCAN,
        lambda: [explained_ranges(*each, wrap=wrap) for each in zip(found.residents, rows, strict=True)],
        request,
    )
    residents = [_with_known_etag(one, resources) for one in found.residents]
    return found._replace(shards=shards, residents=residents)


def _with_known_etag(one: Resident, resources: ShardResources) -> Resident:
    """Return a table with the ETag for its known sequences."""
    assert isinstance(one, ShardedResident)
    etag = resources.fetcher.etag_of(one)
    return one if etag == one.etag else Resident(one.tensor, etag, data_version=one.data_version)


def explained_ranges(
    resident: Resident, rows: NDArray[Any] | Tensor | None, *, wrap: bool
) -> Sequence[Mapping[str, object]]:
    """Return the ranges that a gather of `rows` needs, with their row counts, for an explanation.

    If `rows` is a tensor, it holds keys. If `rows` is None, all ranges are returned. Rows that are out of bounds are
    not counted.
    """
    assert isinstance(resident, ShardedResident)
    version = resident.version_in_map
    counts: Sequence[int | None] = [None] * len(version.ranges)
    if isinstance(rows, Tensor):
        assert version.keys is not None
        numbers = version.keys.range_numbers(column_of([rows], version.keys.dtype), version.first_hashes)
        counts = np.bincount(numbers, minlength=len(version.ranges)).tolist()
    elif rows is not None:
        valid = rows[(rows >= (-version.rows if wrap else 0)) & (rows < version.rows)].astype(np.int64)
        numbers = version.range_numbers(np.where(valid < 0, valid + version.rows, valid))
        counts = np.bincount(numbers, minlength=len(version.ranges)).tolist()
    return [
        {
            "rows": list(bounds),
            "tensor": one.tensor,
            "replicas": [replica.address for replica in one.replicas],
            "tuples": count,
        }
        for one, bounds, count in zip(version.ranges, version.row_bounds, counts, strict=True)
        if count != 0
    ]


class NeedingPlaces(NamedTuple):
    """Where a request's indices need a range: the first few places, in order, and the total count."""

    places: Sequence[tuple[int, Place]]
    total: int


def needing_places(indices: Tensor, tuples: NDArray[np.intp], depth: int = 1) -> NeedingPlaces:
    """Return the places in `indices` of the first few `tuples` (in ascending order), and how many tuples there are."""
    places = []
    for number in tuples[:REPORTED_PLACES].tolist():
        item = number * depth
        value = int(indices.array[item])
        places.append((item, Place(indices.locate(item), coordinates(item, indices.shape), value)))
    return NeedingPlaces(places, len(tuples))


def unavailable(resident: ShardedResident, lost: Sequence[LostRange], needing: Sequence[NeedingPlaces]) -> GatherError:
    """Return the error for ranges without a response: overloaded if a shard is overloaded, or else shard_unavailable.

    `needing` holds the places of the indices that need each range.
    """
    busy = [failure for one in lost for failure in one.failures if failure.kind == "busy"]
    name = f"{resident.table}@{resident.data_version}"
    bounds = [resident.version_in_map.row_bounds[one.number] for one in lost]
    rows = ", ".join(f"{start} to {stop - 1}" for start, stop in bounds[:3])
    if len(bounds) > 3:
        rows += f" and {len(bounds) - 3} more ranges"
    if busy:
        after = max(failure.retry_after for failure in busy)
        detail = f"the shards that have rows {rows} of {name!r} are overloaded"
        return GatherError("overloaded", detail, retry_after=after)
    places = sorted((place for one in needing for place in one.places), key=lambda place: place[0])
    return GatherError(
        "shard_unavailable",
        f"no replica of rows {rows} of {name!r} is responding",
        places=[place for _, place in places[:REPORTED_PLACES]],
        total=sum(one.total for one in needing),
        facts={"ranges": [{"tensor": name, "start": start, "stop": stop} for start, stop in bounds]},
        retry_after=1,
    )

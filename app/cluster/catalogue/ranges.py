"""Changes to open ranges, as pure functions like those in `transitions`.

The first scatter to a version opens its ranges. From then on, each range has a primary and in-sync replicas. The
range's record changes by compare-and-set. Until a primary has begun, the epoch stays at PROPOSED; after that, every
change raises it. The following rules hold:

- Every replica in `in_sync` durably holds every acknowledged record. So any of these replicas may become the primary,
  and no other shard may, whatever else is lost.
- A replica leaves when the primary cannot reach it or when the replica has lost its rows. It joins when the primary has
  sent it everything. A shard counts as in sync only if the segment is listed on it.
- A lost primary remains in the in-sync set until its successor fails to reach it. The successor may have lost its rows
  without anyone knowing yet; if so, the range goes back to the earlier primary.
- A content ID is used only once, so a range that was closed with its version never opens again.

A change contains at most AT_ONCE records. Call the transitions for many ranges repeatedly until they return None, as
`CatalogueClient.transact_all` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final
from zlib import crc32

from app.catalogue.name_errors import not_found
from app.cluster.catalogue.listed_segments import find_listed, listed_segments
from app.cluster.catalogue.records import Catalogue, Change, RangeRecord, Segment
from app.errors import GatherError

AT_ONCE: Final = 100
"""Maximum number of records in a change. etcd's default limit is 128 operations per transaction."""
PROPOSED: Final = 1
"""The epoch of a range whose primary has not yet begun."""
NOBODY: Final[frozenset[str]] = frozenset()


def min_in_sync(replicas: int) -> int:
    """Return how many replicas, including the primary, must hold a scatter before it is acknowledged."""
    return 2 if replicas >= 3 else 1


def open_ranges(catalogue: Catalogue, name: str, number: int) -> Change | None:
    """Open the closed ranges of a version for scatters. Ranges whose shards are all lost stay closed.

    The running shards of a segment count as in sync if they have the uploaded rows. One of them is proposed as the
    primary, at epoch PROPOSED. It begins and raises the epoch after it has found its rows. Nothing is acknowledged
    before that, so any other shard of the segment that has the rows may join (`join_unled_range`) and be proposed
    instead. The change depends on the table's record, so that no segment moves meanwhile. Raises tensor_not_found.
    """
    own = catalogue.record_of(name)
    version = own.version(number)
    if version is None:
        raise not_found(own, f"{name}@{number}")
    opened = (
        (version.tensor(segment), record)
        for segment in version.segments
        if version.tensor(segment) not in catalogue.ranges
        and (record := _first_record(catalogue, version.tensor(segment), segment))
    )
    return _change(opened, unchanged=frozenset({f"tables/{name}"}))


def leave_in_sync(catalogue: Catalogue, tensor: str, epoch: int, gone: frozenset[str]) -> Change | None:
    """Remove replicas that the primary cannot reach from the in-sync set. Called for the primary at `epoch`.

    Returns None if another change has already removed them; the record then shows the current primary. Raises
    precondition_failed if the range is closed or at a different epoch, or if the primary itself is in `gone`.
    """
    record = catalogue.ranges.get(tensor)
    if record is not None and gone.isdisjoint(record.in_sync):
        return None
    record = _check_epoch(record, tensor, epoch)
    if record.primary in gone:
        raise GatherError("precondition_failed", f"{record.primary!r} is the primary of {tensor}")
    left = tuple(node for node in record.in_sync if node not in gone)
    return _change([(tensor, RangeRecord(epoch + 1, record.primary, left))])


def join_in_sync(catalogue: Catalogue, tensor: str, epoch: int, node: str) -> Change | None:
    """Add a replica that has all of the primary's records to the in-sync set. Called for the primary at `epoch`.

    Returns None if it is already in sync. Raises precondition_failed if the range is closed or at a different epoch, or
    if the segment is not listed on `node`. The change depends on the table's record.
    """
    record = catalogue.ranges.get(tensor)
    if record is not None and node in record.in_sync:
        return None
    record = _check_epoch(record, tensor, epoch)
    listed = find_listed(catalogue, tensor)
    if listed is None or node not in listed.segment.nodes:
        raise GatherError("precondition_failed", f"{tensor} is not listed on {node!r}")
    joined = RangeRecord(epoch + 1, record.primary, (*record.in_sync, node))
    return _change([(tensor, joined)], unchanged=frozenset({f"tables/{listed.table}"}))


def join_unled_range(catalogue: Catalogue, tensor: str, node: str) -> Change | None:
    """Add a shard that has the uploaded rows to the in-sync set before a primary has begun. Called for that shard.

    Returns None if it is already in sync, if a primary has begun, or if the segment is not listed on `node`. The change
    depends on the table's record.
    """
    record, listed = catalogue.ranges.get(tensor), find_listed(catalogue, tensor)
    if record is None or listed is None or record.epoch > PROPOSED:
        return None
    if node in record.in_sync or node not in listed.segment.nodes:
        return None
    joined = replace(record, in_sync=(*record.in_sync, node))
    return _change([(tensor, joined)], unchanged=frozenset({f"tables/{listed.table}"}))


def raise_epoch(catalogue: Catalogue, tensor: str, node: str, epoch: int) -> Change | None:
    """Raise the epoch of a range to at least `epoch`, the epoch that its primary `node` has recorded for itself.

    A primary raises its own epoch before it lets a replica join. If the replica then fails to join, the record must
    catch up. Returns None if the record's epoch is already as high, or if another shard is the primary.
    """
    record = catalogue.ranges.get(tensor)
    if record is None or record.primary != node or record.epoch >= epoch:
        return None
    return _change([(tensor, replace(record, epoch=epoch))])


def lose_rows(catalogue: Catalogue, tensor: str, node: str) -> Change | None:
    """Remove a replica that has lost its rows from the in-sync set. If it was the primary, another replica replaces it.

    If no other replica is in sync, nothing changes and the range waits, because a replica without all acknowledged
    scatters must not become the primary. Before a primary has begun, a shard that has its rows can end the wait with
    `join_unled_range`.
    """
    record = catalogue.ranges.get(tensor)
    if record is None or node not in record.in_sync or record.in_sync == (node,):
        return None
    return _change([(tensor, without_replica(catalogue, record, node))])


def fail_over(catalogue: Catalogue, gone: Collection[str] = NOBODY) -> Change | None:
    """Assign a new primary, a running in-sync replica, to each range whose primary is lost.

    Lost shards stay in the in-sync set; the new primary removes those it cannot reach. A range without a running
    in-sync replica waits for one. `gone` lists shards that count as lost although their leases have not ended.
    """
    moved = (
        (one.tensor, _with_in_sync(catalogue, record, running, listed))
        for one in listed_segments(catalogue)
        if (record := one.opened) is not None
        and not _is_running(catalogue, record.primary, one.segment.nodes, gone)
        and (listed := tuple(node for node in record.in_sync if node in one.segment.nodes))
        and (running := [node for node in listed if _is_running(catalogue, node, one.segment.nodes, gone)])
    )
    return _change(moved)


def close_ranges(catalogue: Catalogue) -> Change | None:
    """Remove the records of segments that no version lists."""
    listed = {one.tensor for one in listed_segments(catalogue)} if catalogue.ranges else set()
    return _change((tensor, None) for tensor in catalogue.ranges if tensor not in listed)


def without_replica(catalogue: Catalogue, record: RangeRecord, node: str) -> RangeRecord:
    """Return the record without `node`, one of several in-sync replicas.

    If `node` was the primary, another replaces it.
    """
    left = tuple(one for one in record.in_sync if one != node)
    return _with_in_sync(catalogue, record, left, left)


# Parts


def _first_record(catalogue: Catalogue, tensor: str, segment: Segment) -> RangeRecord | None:
    """Return the first record of a range, or None if no shard of the segment is running.

    The primaries of a table's ranges are spread over its shards.
    """
    living = tuple(node for node in segment.nodes if _is_running(catalogue, node, segment.nodes))
    staying = [node for node in living if node not in catalogue.drained] or living
    return RangeRecord(PROPOSED, staying[crc32(tensor.encode()) % len(staying)], living) if living else None


def _with_in_sync(
    catalogue: Catalogue, record: RangeRecord, able: Sequence[str], in_sync: tuple[str, ...]
) -> RangeRecord:
    """Return the record with the in-sync replicas `in_sync`.

    If the primary is not in `able`, a shard from `able` replaces it; running shards are preferred, and drained ones are
    the last choice.
    """
    epoch = record.epoch + 1 if record.epoch > PROPOSED else PROPOSED
    if record.primary in able:
        return RangeRecord(epoch, record.primary, in_sync)
    primary = min(able, key=lambda node: (node not in catalogue.alive, node in catalogue.drained, able.index(node)))
    return RangeRecord(epoch, primary, in_sync)


def _is_running(catalogue: Catalogue, node: str, nodes: Collection[str], gone: Collection[str] = NOBODY) -> bool:
    return node in nodes and node in catalogue.alive and node in catalogue.nodes and node not in gone


def _check_epoch(record: RangeRecord | None, tensor: str, epoch: int) -> RangeRecord:
    if record is None:
        raise GatherError("precondition_failed", f"{tensor} accepts no scatters: its version was removed")
    if record.epoch != epoch:
        raise GatherError("precondition_failed", f"{tensor} is at epoch {record.epoch}, not {epoch}")
    return record


def _change(
    records: Iterable[tuple[str, RangeRecord | None]], unchanged: frozenset[str] = frozenset()
) -> Change | None:
    puts = {f"ranges/{tensor}": record for tensor, record in islice(records, AT_ONCE)}
    return Change(puts, unchanged) if puts else None

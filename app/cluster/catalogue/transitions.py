"""Changes to the catalogue: pure functions that return the records to write, or raise GatherError.

Each change specifies the records it depends on, and is made only if they have not changed by the time it is committed.
A transition returns None if its outcome already holds, so it may be repeated. The rules for names are in
`app.catalogue`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from app.catalogue import aliases, versions
from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.name_errors import not_found
from app.catalogue.records import Alias
from app.cluster.catalogue.node_choice import choose_nodes, place_ranges
from app.cluster.catalogue.records import (
    Catalogue,
    Change,
    Forgotten,
    Mark,
    Options,
    Record,
    Segment,
    Table,
    UploadRecord,
    Version,
)
from app.errors import GatherError
from app.tensors.tensor_name import check_new_name, split_reference

REMEMBERED: Final = 10_000
"""Number of tables without versions whose records are kept: those that lost their last version most recently."""
_FORGOTTEN_AT_ONCE: Final = 100


# Uploads


def begin_upload(
    catalogue: Catalogue,
    content_id: str,
    table: str,
    parts: Sequence[Segment],
    replicas: int | None = None,
    router: str = "",
) -> Change | None:
    """Place the segments of a new version on shards.

    The upload's record is under a lease, and protects the written rows from being dropped. `parts` are the segments
    before shards are assigned. `replicas` is the number of replicas that the upload requests. If it is None, the
    table's number applies or, if the table has none, the number in the options. The change depends on the table's
    record, so that a duplicate request that arrives after publication does not restore the upload's record.
    """
    if content_id in catalogue.uploads:
        return None
    check_new_name(table)
    versions.check_new_version(catalogue.record_of(table))
    count = replicas or replicas_of(catalogue, catalogue.tables.get(table))
    sizes = [one.size for one in parts]
    free = free_bytes(catalogue)
    chosen = place_ranges(free, sizes, count, zones_of(catalogue))
    if chosen is None:
        detail = f"each range needs {count} shards with room; {len(free)} shards are running and not drained"
        raise GatherError("insufficient_storage", detail)
    segments = tuple(replace(one, nodes=tuple(nodes)) for one, nodes in zip(parts, chosen, strict=True))
    key = f"uploads/{content_id}"
    record = UploadRecord(table, segments, router)
    return Change({key: record}, unchanged=frozenset({f"tables/{table}", "forgotten"}), leased=frozenset({key}))


def move_upload(
    catalogue: Catalogue, content_id: str, start: int, old: str, avoid: Collection[str] = ()
) -> Change | None:
    """Move the segment of an upload that begins at `start` from shard `old` to a shard that is not in `avoid`."""
    upload = catalogue.uploads.get(content_id)
    if upload is None:
        raise unavailable("the upload has ended: etcd did not hear from its router for too long")
    found = next(one for one in upload.segments if one.start == start)
    if old not in found.nodes:
        return None
    left = tuple(node for node in found.nodes if node != old)
    free = {node: room for node, room in free_bytes(catalogue).items() if node != old and node not in avoid}
    chosen = choose_nodes(free, found.size, 1, zones_of(catalogue), left)
    if not chosen:
        raise unavailable(f"the shard {old!r} was lost, and no other shard has room for its rows")
    moved = replace(found, nodes=(*left, *chosen))
    segments = tuple(moved if one.start == start else one for one in upload.segments)
    key = f"uploads/{content_id}"
    return Change({key: replace(upload, segments=segments)}, leased=frozenset({key}))


def publish(
    catalogue: Catalogue,
    table: str,
    version: Version,
    keep: int = 1,
    replicas: int | None = None,
    conditions: Conditions = ALWAYS,
) -> Change | None:
    """Publish an upload as the current version of its table, with the next number (`version.number` is ignored).

    Its segments must be complete on all their shards and must have their digests. `versions.select_replaced` decides
    which versions are removed. If `replicas` is given, it becomes the table's number of replicas. Raises name_conflict,
    precondition_failed and shard_unavailable.
    """
    known, own = catalogue.tables.get(table), catalogue.record_of(table)
    content_id = version.content_id
    if any(one.content_id == content_id for one in own.versions):
        return None
    gone = versions.select_replaced(own, keep, conditions, lambda one: one.etag)
    upload = catalogue.uploads.get(content_id)
    if upload is None:
        detail = "the upload was abandoned because its router was silent, or its version has since been removed"
        raise unavailable(detail)
    placed = [(one.start, one.stop, set(one.nodes)) for one in upload.segments]
    written = [(one.start, one.stop, set(one.nodes)) for one in version.segments]
    if placed != written:
        detail = "the rows were written to another shard than they were placed on, since etcd did not answer in between"
        raise unavailable(detail)
    number = versions.next_number(None if known is None else known.last_number, catalogue.forgotten.last_number)
    kept = tuple(one for one in own.versions if one not in gone)
    created = version.created if known is None or not known.versions else known.created
    if replicas is None and known is not None:
        replicas = known.replicas
    numbered = replace(version, number=number)
    return Change(
        {f"tables/{table}": Table((*kept, numbered), number, created, replicas), f"uploads/{content_id}": None},
        unchanged=frozenset({"forgotten"}),
        no_newer=("aliases/",),
    )


def end_upload(catalogue: Catalogue, content_id: str) -> Change | None:
    """Give up an upload. Its rows are dropped afterwards."""
    if content_id not in catalogue.uploads:
        return None
    return Change({f"uploads/{content_id}": None})


# Versions and aliases


def remove_versions(catalogue: Catalogue, reference: str, conditions: Conditions = ALWAYS) -> Change:
    """Remove one version of a table, or all versions. Raises the errors of `versions.select_removed`."""
    name = split_reference(reference)[0]
    going = versions.select_removed(catalogue.record_of(name), reference, conditions, lambda one: one.etag)
    table = catalogue.tables[name]
    kept = tuple(one for one in table.versions if one not in going)
    forgotten = {} if kept else _forget_oldest_tables(catalogue)
    return Change({f"tables/{name}": replace(table, versions=kept), **forgotten}, no_newer=("aliases/",))


def put_aliases(made: Iterable[Alias]) -> Change | None:
    """Write aliases, all or none, as computed from a catalogue by `aliases.move_aliases`.

    The change depends on all tables, including those without versions, because etcd limits the number of keys that one
    transaction can compare.
    """
    changed: dict[str, Record | None] = {f"aliases/{one.alias}": one for one in made}
    return Change(changed, frozenset({"forgotten"}), no_newer=("tables/",)) if changed else None


def remove_alias(catalogue: Catalogue, alias: str, conditions: Conditions = ALWAYS) -> Change:
    """Remove an alias. Raises the errors of `aliases.alias_to_remove`."""
    aliases.alias_to_remove(catalogue.record_of(alias), conditions)
    return Change({f"aliases/{alias}": None})


def set_replicas(catalogue: Catalogue, name: str, replicas: int) -> Change | None:
    """Set the desired number of shards for each segment of a table. Raises name_conflict and tensor_not_found."""
    own = catalogue.record_of(name)
    versions.check_new_version(own)
    if own.current is None:
        raise not_found(own, name)
    table = catalogue.tables[name]
    if table.replicas == replicas:
        return None
    return Change({f"tables/{name}": replace(table, replicas=replicas)})


# The cluster


def set_options(catalogue: Catalogue, new: Options, given: Mapping[str, Any]) -> Change | None:
    """Set the given options. If the catalogue has no options yet, the remaining ones come from `new`."""
    is_first = "options" not in catalogue.revisions
    options = replace(new if is_first else catalogue.options, **given)
    return Change({"options": options}) if is_first or options != catalogue.options else None


def drain(catalogue: Catalogue, node: str, by: str = "") -> Change | None:
    """Make a shard give up its segments."""
    _check_node(catalogue, node)
    return None if node in catalogue.drained else Change({f"drained/{node}": Mark(by)})


def undrain(catalogue: Catalogue, node: str) -> Change | None:
    """Let a shard receive segments again."""
    _check_node(catalogue, node)
    return Change({f"drained/{node}": None}) if node in catalogue.drained else None


def forget_node(catalogue: Catalogue, node: str) -> Change | None:
    """Remove the records of a shard that will not come back. If it does, it registers itself again.

    The change depends on all tables, ranges and uploads. Each segment listed on this shard must also be on another
    running shard and, if its range is open, be in sync there.
    """
    if node not in catalogue.nodes:
        return None
    if node in catalogue.alive:
        raise GatherError("precondition_failed", f"the shard {node!r} is running: stop it first")
    for name, table in catalogue.tables.items():
        for version in table.versions:
            for one in version.segments:
                if node in one.nodes and catalogue.alive.isdisjoint(synced_nodes(catalogue, version, one)):
                    rows = f"rows {one.start} to {one.stop - 1}" if version.keys is None else "some rows"
                    detail = f"no running shard has {rows} of '{name}@{version.number}'"
                    raise GatherError("tensor_in_use", f"{detail}, and {node!r} may still have them")
    if any(node in one.nodes for upload in catalogue.uploads.values() for one in upload.segments):
        raise GatherError("tensor_in_use", f"an upload in progress has rows on {node!r}")
    going = {f"nodes/{node}": None} | ({f"drained/{node}": None} if node in catalogue.drained else {})
    return Change(going, frozenset({f"alive/{node}"}), no_newer=("tables/", "uploads/", "ranges/"))


def mark_lost(catalogue: Catalogue, node: str) -> Change | None:
    """Count a shard as lost before its lease ends, because its machine is known to be lost."""
    return Change({f"alive/{node}": None}) if node in catalogue.alive else None


# Reading a catalogue


def segment_bounds(rows: int, ranges: int) -> list[tuple[int, int]]:
    """Divide `rows` into `ranges` segments (fewer if there are fewer rows). Their sizes differ by at most one."""
    ranges = min(ranges, rows)
    return [(number * rows // ranges, (number + 1) * rows // ranges) for number in range(ranges)]


def synced_nodes(catalogue: Catalogue, version: Version, segment: Segment) -> tuple[str, ...]:
    """Return the shards that have the current rows of a segment. For an open range, these are the in-sync ones."""
    opened = catalogue.ranges.get(version.tensor(segment))
    return segment.nodes if opened is None else opened.in_sync


def replicas_of(catalogue: Catalogue, table: Table | None) -> int:
    """Return the desired number of shards for each segment of a table."""
    own = None if table is None else table.replicas
    return catalogue.options.replicas if own is None else own


def used_bytes(catalogue: Catalogue) -> dict[str, int]:
    """Return the bytes that tables and uploads occupy, or will occupy, on each shard."""
    used = dict.fromkeys(catalogue.nodes, 0)
    segments = [one for upload in catalogue.uploads.values() for one in upload.segments]
    for table in catalogue.tables.values():
        for version in table.versions:
            segments += version.segments
    for segment in segments:
        for node in segment.nodes:
            used[node] = used.get(node, 0) + segment.size
    return used


def free_bytes(catalogue: Catalogue) -> dict[str, int]:
    """Return the free bytes of each running shard that is not drained."""
    used = used_bytes(catalogue)
    return {
        node: one.capacity - used[node]
        for node, one in catalogue.nodes.items()
        if node in catalogue.alive and node not in catalogue.drained
    }


def zones_of(catalogue: Catalogue) -> Mapping[str, str]:
    """Return the zone of each shard."""
    return {node: one.zone for node, one in catalogue.nodes.items()}


# Parts


def unavailable(detail: str) -> GatherError:
    """Return a shard_unavailable error for a change of the catalogue."""
    return GatherError("shard_unavailable", detail, hint="Send the request again after 1 s.", retry_after=1)


def _check_node(catalogue: Catalogue, node: str) -> None:
    if node not in catalogue.nodes:
        known = ", ".join(sorted(catalogue.nodes)) or "none"
        raise GatherError("invalid_field", f"no shard is named {node!r}; known shards: {known}")


def _forget_oldest_tables(catalogue: Catalogue) -> dict[str, Record | None]:
    """Return the changes that remove the oldest tables without versions, if there are at least REMEMBERED of them."""
    gone = [name for name, table in catalogue.tables.items() if not table.versions]
    if len(gone) < REMEMBERED:
        return {}
    going = sorted(gone, key=lambda name: catalogue.revisions[f"tables/{name}"])[:_FORGOTTEN_AT_ONCE]
    last = max(catalogue.forgotten.last_number, *(catalogue.tables[name].last_number for name in going))
    return {"forgotten": Forgotten(last), **{f"tables/{name}": None for name in going}}

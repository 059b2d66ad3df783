"""What a coordinator keeps durable: the map and what it needs beside it, and how each change makes a new one of it.

States are immutable. The functions here are pure: each makes one change, or raises ChangeRefused; which generation the
changed state gets is the coordinator's to say, since it commits several changes together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

from app.cluster.coordinator.messages import Change, RangeKey
from app.cluster.shard_map import AliasTimes, Replica, RowRange, ShardedTable, ShardedVersion, ShardMap
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from app.tensors.tensor_name import check_new_name, split_reference

REMEMBERED: Final = 10_000
"""Records that are kept of tables without a version, and of changes of aliases and nodes that are gone: the last."""


Record = TypeVar("Record")


class ChangeRefused(Exception):
    """A change that is not made; `code` is an error's of the service, or `stale_map` where asking again may help."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Content:
    """What a new version is made of; `digests` has one for each range, in order."""

    content_id: str
    table: str
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    url: str = ""
    sha256: str = ""
    created: int = 0
    digests: tuple[str, ...] = ()
    size: int = 0
    """Bytes of all items."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What is known of a table, also when all its versions are gone, until REMEMBERED others have gone after it."""

    last_number: int
    """No later version has this number or a lower one."""
    removed_at: int
    """The last generation that removed a version of it."""


@dataclass(frozen=True, slots=True)
class LastChange:
    """The last change of an alias or of whether a node is drained."""

    generation: int
    request_id: str


class ListedRange(NamedTuple):
    """A range of a version in the map, with the machines of its replicas, and what its content says of it."""

    key: RangeKey
    replicas: tuple[Replica, ...]
    nodes: tuple[str, ...]
    size: int
    digest: str
    url: str


@dataclass(frozen=True)
class ClusterState:
    """One record of the coordinator, whose number is the generation of its map.

    `coordinator` is the one that made it, in `term`, which is the generation of its first record. `changes` has the
    last change by `alias:NAME` and `node:NAME`. `forgotten` has the highest number and the last removal of the tables
    that `tables` has no more, and stands for every table that it has not; `forgotten_change` is the generation of the
    last change that `changes` has no more. `unknown` are members that another version of the service has written:
    they are written back as they were.
    """

    map: ShardMap = field(default_factory=ShardMap)
    term: int = 0
    coordinator: str = ""
    draining: frozenset[str] = frozenset()
    tables: Mapping[str, TableRecord] = field(default_factory=dict)
    contents: Mapping[str, Content] = field(default_factory=dict)
    changes: Mapping[str, LastChange] = field(default_factory=dict)
    forgotten: TableRecord = TableRecord(0, 0)
    forgotten_change: int = 0
    unknown: Mapping[str, object] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        """The number of the record."""
        return self.map.generation

    def table_record(self, name: str) -> TableRecord:
        """What is known of a table, also of one that never was."""
        return self.tables.get(name, self.forgotten)

    @cached_property
    def listed(self) -> tuple[ListedRange, ...]:
        """Each range of each version in the map; found once, since a coordinator looks at all of them every second."""
        found = []
        for table in self.map.tables.values():
            for version in table.versions:
                content = self.contents[version.content_id]
                for one, digest in zip(version.ranges, content.digests, strict=True):
                    key = RangeKey(version.content_id, one.start, one.stop)
                    nodes = tuple(replica.node for replica in one.replicas)
                    size = one.rows * content.row_bytes
                    found.append(ListedRange(key, one.replicas, nodes, size, digest, content.url))
        return tuple(found)


def find_content(found: ShardMap, content_id: str) -> tuple[str, ShardedVersion] | None:
    """The table and the version of this content, None where the map has none."""
    for name, table in found.tables.items():
        for version in table.versions:
            if version.content_id == content_id:
                return name, version
    return None


def range_bounds(rows: int, ranges: int) -> list[tuple[int, int]]:
    """`rows` cut into `ranges` ranges whose sizes differ by one at most, fewer where there are fewer rows."""
    ranges = min(ranges, rows)
    return [(number * rows // ranges, (number + 1) * rows // ranges) for number in range(ranges)]


def publish(
    state: ClusterState, content: Content, replicas: Mapping[RangeKey, tuple[Replica, ...]], keep: int
) -> ClusterState:
    """A new version, current from now on; of the older ones the `keep - 1` newest stay and those that aliases name.

    `replicas` has the ranges in order, with the shards that hold each of them whole. Raises ChangeRefused.
    """
    check_publishable(state, content)
    table = state.map.tables.get(content.table)
    record = state.table_record(content.table)
    number = record.last_number + 1
    version = ShardedVersion(
        number,
        content.content_id,
        DTYPES[content.dtype],
        content.shape,
        tuple(RowRange(key.start, key.stop, key.tensor, own) for key, own in replicas.items()),
        content.created,
        content.sha256,
        content.size,
    )
    versions = (*(table.versions if table else ()), version)
    aliased = {split_reference(target)[1] for target in _targets(state.map, content.table)}
    newest = versions[-max(keep, 1) :]
    kept = tuple(one for one in versions if one in newest or one.number in aliased)
    changed = _with_table(state, content.table, ShardedTable(kept, number, _created(table) or content.created))
    removed_at = state.generation + 1 if len(kept) < len(versions) else record.removed_at
    return replace(
        changed,
        tables={**changed.tables, content.table: TableRecord(number, removed_at)},
        contents={**changed.contents, content.content_id: content},
    )


def check_publishable(state: ClusterState, content: Content) -> None:
    """Raises ChangeRefused where no version of this name, type or shape can be published."""
    if content.table in state.map.aliases:
        raise ChangeRefused("name_conflict", f"{content.table!r} is an alias")
    if DTYPES.get(content.dtype) is None:
        raise ChangeRefused("unsupported_dtype", f"there is no element type {content.dtype!r}")
    if min(content.shape, default=0) < 0:
        raise ChangeRefused("invalid_field", "a shape has no negative sizes")
    _check_name(content.table)


def change(state: ClusterState, asked: Change) -> ClusterState:
    """The change that a router asks for; the state itself where it is made already. Raises ChangeRefused."""
    match asked.what:
        case "put_alias":
            return _changed_once(state, asked, f"alias:{asked.subject}", _put_alias)
        case "remove_alias":
            return _changed_once(state, asked, f"alias:{asked.subject}", _remove_alias)
        case "drain" | "undrain":
            return _changed_once(state, asked, f"node:{asked.subject}", _set_draining)
        case "remove":
            return _remove_versions(state, asked.subject, {int(number) for number in asked.value.split(",")})


def move_replica(state: ClusterState, key: RangeKey, old: str, new: Replica) -> ClusterState:
    """The replica on machine `old` replaced by `new`, which has the range whole; the state itself if that is gone."""

    def moved(version: ShardedVersion, one: RowRange) -> RowRange:
        nodes = [replica.node for replica in one.replicas]
        if RangeKey(version.content_id, one.start, one.stop) != key or new.node in nodes or old not in nodes:
            return one
        return replace(one, replicas=tuple(new if replica.node == old else replica for replica in one.replicas))

    return _with_ranges(state, moved)


def set_address(state: ClusterState, node: str, address: str) -> ClusterState:
    """The shard on `node` answers at another address."""

    def at_address(_: ShardedVersion, one: RowRange) -> RowRange:
        if all(replica.node != node or replica.address == address for replica in one.replicas):
            return one
        replicas = tuple(
            replace(replica, address=address) if replica.node == node else replica for replica in one.replicas
        )
        return replace(one, replicas=replicas)

    return _with_ranges(state, at_address)


# The changes that routers ask for


def _changed_once(
    state: ClusterState, asked: Change, subject: str, made: Callable[[ClusterState, Change], ClusterState]
) -> ClusterState:
    last = state.changes.get(subject)
    if last is not None and last.request_id == asked.request_id:
        return state
    if (state.forgotten_change if last is None else last.generation) > asked.known:
        detail = f"{subject.partition(':')[2]!r} has been changed meanwhile"
        raise ChangeRefused("stale_map", detail if last is not None else f"{detail}, or may have been")
    record = LastChange(state.generation + 1, asked.request_id)
    return _forget_changes(replace(made(state, asked), changes={**state.changes, subject: record}))


def _put_alias(state: ClusterState, asked: Change) -> ClusterState:
    _check_name(asked.subject)
    if asked.subject in state.map.tables:
        raise ChangeRefused("name_conflict", f"{asked.subject!r} is a table")
    name, number = split_reference(asked.value)
    table = state.map.tables.get(name)
    if number is None or table is None or table.version(number) is None:
        raise ChangeRefused("tensor_not_found", f"{asked.value!r} is no version of a table")
    before = state.map.alias_times.get(asked.subject)
    times = AliasTimes(asked.at if before is None else before.created, asked.at)
    if before is not None and state.map.aliases[asked.subject] == asked.value:
        times = before
    return _with_map(
        state,
        aliases={**state.map.aliases, asked.subject: asked.value},
        alias_times={**state.map.alias_times, asked.subject: times},
    )


def _remove_alias(state: ClusterState, asked: Change) -> ClusterState:
    if asked.subject not in state.map.aliases:
        raise ChangeRefused("tensor_not_found", f"there is no alias {asked.subject!r}")
    aliases, times = dict(state.map.aliases), dict(state.map.alias_times)
    del aliases[asked.subject]
    times.pop(asked.subject, None)
    return _with_map(state, aliases=aliases, alias_times=times)


def _set_draining(state: ClusterState, asked: Change) -> ClusterState:
    node = {asked.subject}
    return replace(state, draining=state.draining | node if asked.what == "drain" else state.draining - node)


def _remove_versions(state: ClusterState, name: str, numbers: Collection[int]) -> ClusterState:
    """Numbers never come again, so that a second removal finds nothing and does nothing."""
    table = state.map.tables.get(name)
    going = [one.number for one in table.versions if one.number in numbers] if table else []
    if table is None or not going:
        return state
    for target in _targets(state.map, name):
        if split_reference(target)[1] in going:
            raise ChangeRefused("tensor_in_use", f"an alias names {target!r}")
    kept = tuple(one for one in table.versions if one.number not in going)
    live = table.live if table.live not in going else max((one.number for one in kept), default=0)
    changed = _with_table(state, name, ShardedTable(kept, live, _created(table)))
    record = replace(state.tables[name], removed_at=state.generation + 1)
    return _forget_tables(replace(changed, tables={**state.tables, name: record}))


# What is forgotten


def _forget_tables(state: ClusterState) -> ClusterState:
    """The state without the records of tables that were removed before REMEMBERED others."""
    gone = [name for name in state.tables if name not in state.map.tables]
    going = sorted(gone, key=lambda name: state.tables[name].removed_at)[: max(0, len(gone) - REMEMBERED)]
    if not going:
        return state
    records = [state.forgotten, *(state.tables[name] for name in going)]
    forgotten = TableRecord(max(one.last_number for one in records), max(one.removed_at for one in records))
    return replace(state, forgotten=forgotten, tables=_without(state.tables, going))


def _forget_changes(state: ClusterState) -> ClusterState:
    """The state without changes of what is gone, aliases and the draining of nodes, but for the last REMEMBERED."""
    kept = {f"alias:{name}" for name in state.map.aliases} | {f"node:{name}" for name in state.draining}
    gone = [subject for subject in state.changes if subject not in kept]
    going = sorted(gone, key=lambda subject: state.changes[subject].generation)[: max(0, len(gone) - REMEMBERED)]
    if not going:
        return state
    last = max(state.forgotten_change, *(state.changes[subject].generation for subject in going))
    return replace(state, forgotten_change=last, changes=_without(state.changes, going))


def _without(mapping: Mapping[str, Record], going: Collection[str]) -> dict[str, Record]:
    left = set(going)
    return {name: one for name, one in mapping.items() if name not in left}


# Parts of a state


def _targets(found: ShardMap, table: str) -> list[str]:
    return [target for target in found.aliases.values() if split_reference(target)[0] == table]


def _check_name(name: str) -> None:
    try:
        check_new_name(name)
    except GatherError as error:
        raise ChangeRefused(error.code, error.detail) from None


def _created(table: ShardedTable | None) -> int:
    """When a table's name came into being, 0 without one; where its map does not say so, its oldest version."""
    return 0 if table is None else table.created or table.versions[0].created


def _with_map(state: ClusterState, **changed: Any) -> ClusterState:
    return replace(state, map=replace(state.map, **changed))


def _with_table(state: ClusterState, name: str, table: ShardedTable) -> ClusterState:
    """The state with another table of this name, or with none where it has no versions."""
    tables = {**state.map.tables, name: table}
    if not table.versions:
        del tables[name]
    changed = _with_map(state, tables=tables)
    kept = {one.content_id for table in tables.values() for one in table.versions}
    return replace(changed, contents={known: one for known, one in state.contents.items() if known in kept})


def _with_ranges(state: ClusterState, changed: Callable[[ShardedVersion, RowRange], RowRange]) -> ClusterState:
    """The state with each range as `changed` says; the state itself where it changes none."""
    tables = {}
    is_changed = False
    for name, table in state.map.tables.items():
        versions = []
        for version in table.versions:
            ranges = tuple(changed(version, one) for one in version.ranges)
            same = all(new is old for new, old in zip(ranges, version.ranges, strict=True))
            is_changed = is_changed or not same
            versions.append(version if same else replace(version, ranges=ranges))
        tables[name] = replace(table, versions=tuple(versions))
    return _with_map(state, tables=tables) if is_changed else state

"""The records of a cluster's catalogue: immutable, and stored as JSON under the keys of a database.

    options           how new versions are divided, and the API key for calls to shards
    tables/NAME       a table: its versions, each a list of segments with the shards that have them
    aliases/NAME      an alias
    nodes/NODE        the address and capacity of a shard, even while it is not running
    alive/NODE        the shard is running; the key is removed when its process has been silent for too long
    drained/NODE      the shard is giving up its segments
    uploads/CONTENT   a version that is being written; the key is removed when its router has been silent for too long
    ranges/TENSOR     the primary of an open segment and the shards in sync, see `ranges`
    reconciler        the leading reconciler, see `reconciler`
    forgotten         the highest version number of tables whose records were removed

Each upload gets a new random content ID, which is never reused. If an ID is in neither `uploads` nor `tables`, its
version will never be published. So a process that finds files with a content ID, and afterwards does not find that ID
in `uploads` or `tables`, may drop the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter

from app.catalogue.records import Alias, NameRecord
from app.cluster.key_placement import KeyPlacement
from app.cluster.shard_map import DTypeByName, bounds_of, shard_tensor


@dataclass(frozen=True, slots=True)
class Options:
    """Defaults for new versions: `ranges` segments, each on `replicas` shards.

    `key` is the API key for calls to shards. A segment of more than `segment_bytes` is split in two; None disables
    splitting. `cluster` is drawn at random when the options are first written, and identifies the cluster that a
    shard's store belongs to.
    """

    ranges: int = 4
    replicas: int = 2
    key: str | None = None
    segment_bytes: int | None = 1 << 34
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start` to `stop` - 1 of one version, complete on each of `nodes`.

    `size` is in bytes, and `sha256` is a digest. In a table with keys, the segment is the `rows` rows whose keys have
    hashes from `start` to `stop` - 1; `size` then includes the keys, and the digest is computed by
    `shard_map.digest_of`. Before the rows are written, the digest is "", and `nodes` are the shards that will receive
    the rows.
    """

    start: int
    stop: int
    size: int
    nodes: tuple[str, ...] = ()
    sha256: str = ""
    rows: int | None = None

    @property
    def row_count(self) -> int:
        """Number of rows in the segment."""
        return self.stop - self.start if self.rows is None else self.rows

    def shape(self, of: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the segment's tensor on shards, for a table of shape `of`."""
        return (self.row_count, *of[1:])


@dataclass(frozen=True, slots=True)
class Version:
    """One version.

    Its segments cover the rows in order, without gaps or overlaps. A table without rows has no segments.

    If the table has `keys`, the segments cover the hashes of keys instead. `created` is in nanoseconds since 1970.
    `sha256` and `size` (in bytes) cover all items, in the order sent. `origin` is the URL or URL#TENSOR of an import,
    or "" for an upload. `note` is the caller's note.
    """

    number: int
    content_id: str
    dtype: DTypeByName
    shape: tuple[int, ...]
    segments: tuple[Segment, ...]
    created: int
    sha256: str
    size: int
    origin: str = ""
    note: str = ""
    keys: KeyPlacement | None = None

    @property
    def etag(self) -> str:
        """The ETag of the version as uploaded."""
        return f'"{self.content_id}-0"'

    @property
    def row_bounds(self) -> Sequence[tuple[int, int]]:
        """The first row of each segment and the row after its last one, in download order."""
        return bounds_of(one.row_count for one in self.segments)

    def tensor(self, segment: Segment) -> str:
        """Return the name under which shards hold a segment of this version."""
        return shard_tensor(self.content_id, segment.start, segment.stop)


@dataclass(frozen=True, slots=True)
class Table:
    """The kept versions, oldest first; the last one is current.

    A table whose versions have all been removed keeps its record, so that no number up to `last_number` is ever reused.
    """

    versions: tuple[Version, ...]
    last_number: int
    created: int
    replicas: int | None = None
    """Desired number of shards for each segment; None means the default in `Options`."""


@dataclass(frozen=True, slots=True)
class Node:
    """A shard at `address` (host:port) that may hold `capacity` bytes of rows.

    `zone` is its failure domain, or "" if unknown. `release` is the version of the service that it runs.
    """

    address: str
    capacity: int
    zone: str = ""
    release: str = ""


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload of a version of `table`: its segments, and the shards to which the process `router` is writing them."""

    table: str
    segments: tuple[Segment, ...]
    router: str = ""


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """An open segment. `primary` orders its scatters, and each shard in `in_sync` has all acknowledged scatters.

    `primary` is in `in_sync`. Once a primary has begun, each change of the record raises `epoch`, so an epoch belongs
    to one primary. A segment without a RangeRecord is closed and has the uploaded rows.
    """

    epoch: int
    primary: str
    in_sync: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A record whose key alone carries the meaning. `of` tells human readers who wrote the record."""

    of: str = ""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The highest version number of any table whose record was removed. A new table's version numbers follow it."""

    last_number: int = 0


Record: TypeAlias = Options | Table | Alias | Node | UploadRecord | RangeRecord | Mark | Forgotten

KINDS: Final[Mapping[str, type[Record]]] = {
    "options": Options,
    "tables/": Table,
    "aliases/": Alias,
    "nodes/": Node,
    "alive/": Mark,
    "drained/": Mark,
    "uploads/": UploadRecord,
    "ranges/": RangeRecord,
    "reconciler": Mark,
    "forgotten": Forgotten,
}
"""The record types by the prefix of their keys. An entry that does not end with a slash is a whole key. `Catalogue` has
a member for each prefix, with the prefix as its name.
"""
_ADAPTERS: Final = {kind: TypeAdapter[Any](kind) for kind in KINDS.values()}


def kind_of(key: str) -> str | None:
    """Return the prefix of a key if it is in KINDS, or else None. Other releases may have more kinds."""
    beginning = key[: key.find("/") + 1] or key
    return beginning if beginning in KINDS else None


def to_json(record: Record) -> bytes:
    """Return a record in the form stored in the database."""
    found: bytes = _ADAPTERS[type(record)].dump_json(record, exclude_defaults=True)
    return found


def from_json(key: str, text: bytes) -> Record | None:
    """Parse the record of a key. Returns None if its kind is unknown. Unknown members are ignored.

    Raises pydantic's ValueError if the text is not a valid record.
    """
    kind = kind_of(key)
    if kind is None:
        return None
    found: Record = _ADAPTERS[KINDS[kind]].validate_json(text, extra="ignore")
    return found


@dataclass(frozen=True)
class Catalogue:
    """All records at one moment. `revision` never decreases.

    `revisions` holds the revision that last wrote each key, so that a change can specify the revisions it depends on.
    """

    revision: int = 0
    options: Options = Options()
    tables: Mapping[str, Table] = field(default_factory=dict)
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    uploads: Mapping[str, UploadRecord] = field(default_factory=dict)
    ranges: Mapping[str, RangeRecord] = field(default_factory=dict)
    """The open ranges, by the names under which shards hold their segments."""
    reconciler: Mark | None = None
    """The leading reconciler, or None. Its fencing token is the revision that wrote the record."""
    forgotten: Forgotten = Forgotten()
    revisions: Mapping[str, int] = field(default_factory=dict)

    def record_of(self, name: str) -> NameRecord[Version]:
        """Return the versions or the alias of a name."""
        table = self.tables.get(name)
        versions = () if table is None else table.versions
        return NameRecord(name, versions, self._aliases_by_name.get(name, ()), self.aliases.get(name))

    @cached_property
    def _aliases_by_name(self) -> Mapping[str, list[Alias]]:
        """The aliases that point to versions of each name."""
        found: dict[str, list[Alias]] = {}
        for _, alias in sorted(self.aliases.items()):
            found.setdefault(alias.name, []).append(alias)
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """An atomic change of the catalogue.

    `puts` holds the new records by key, or None for a key to remove. etcd removes the keys in `leased` when the process
    that made the change has been silent for too long. The change is made only if no key in `puts` or `unchanged`, and
    no key with a prefix in `no_newer`, has been written since the catalogue from which the change was computed.
    """

    puts: Mapping[str, Record | None] = field(default_factory=dict)
    unchanged: frozenset[str] = frozenset()
    no_newer: tuple[str, ...] = ()
    leased: frozenset[str] = frozenset()


class TooLarge(Exception):
    """A change contains more bytes or records than the database accepts in one transaction. Nothing was written."""


_NOTHING: Final = Catalogue()


def apply_writes(catalogue: Catalogue, revision: int, written: Mapping[str, tuple[bytes, int] | None]) -> Catalogue:
    """Return the catalogue at `revision`, including the records written since `catalogue`.

    `written` holds each record and its revision by key, or None if the key was removed. Raises OSError if a record is
    unreadable, because leaving it out would mean that it does not exist.
    """
    revisions = dict(catalogue.revisions)
    changed: dict[str, Any] = {}
    for key, found in written.items():
        if found is None:
            revisions.pop(key, None)
        else:
            revisions[key] = found[1]
        kind = kind_of(key)
        if kind is None:
            continue
        try:
            record = None if found is None else from_json(key, found[0])
        except ValueError as error:
            raise OSError(f"the record {key!r} cannot be read: {error}") from None
        member, name = kind.removesuffix("/"), key.removeprefix(kind)
        if not name:
            changed[member] = getattr(_NOTHING, member) if record is None else record
        elif KINDS[kind] is Mark:
            before = changed.get(member, getattr(catalogue, member))
            changed[member] = before - {name} if record is None else before | {name}
        else:
            folder = changed.setdefault(member, dict(getattr(catalogue, member)))
            folder.pop(name, None)
            if record is not None:
                folder[name] = record
    return replace(catalogue, revision=revision, revisions=revisions, **changed)

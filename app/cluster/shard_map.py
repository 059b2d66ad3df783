"""The shard map: the tables, the row ranges of each, and the shards that hold each range.

A map is immutable. Every change makes a new map with a higher generation, which replaces the old one in a single
assignment. A request keeps the map that was current when it began, so it sees a single version of each table.

The JSON form, as in a static map file:

    {"generation": 1,
     "tables": {"items": {"live": 7, "versions": [
        {"number": 7, "content_id": "c81f02", "dtype": "float32", "shape": [200000, 64],
         "ranges": [{"start": 0, "stop": 100000, "tensor": "items.0@1",
                     "replicas": [{"address": "10.0.0.1:8080", "node": "a", "etag": "\"9f31-0\""}]}, ...]}]}},
     "aliases": {"items-prod": "items@7"}}

The optional members are `generation`, `aliases`, `live` (default: the highest version number), `tensor` (default: the
name from `shard_tensor`), `node` and `etag`. A map built from a catalogue also has times: `created` of tables and
versions, and `alias_records`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from math import prod
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from app.catalogue.records import Alias
from app.cluster.key_placement import KeyPlacement, first_hashes
from app.errors import GatherError
from app.tensors.dtypes import DTYPES, DType
from app.tensors.shape_limits import NUMPY_BYTES
from app.tensors.tensor import nbytes
from app.tensors.tensor_name import check_new_name, check_reference, split_reference

MAX_RANGES: Final = 1 << 16
_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_NODE: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")
_CONTENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class BadShardMap(ValueError):
    """A shard map is invalid. The message says where and why."""


def _dtype(name: object) -> DType:
    found = DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"is not an element type; those are {', '.join(DTYPES)}")
    return found


DTypeByName: TypeAlias = Annotated[
    DType, PlainValidator(_dtype), PlainSerializer(lambda dtype: dtype.name, return_type=str)
]


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a range, served at `address` (host:port).

    If `node` is set, a shard with a different name at that address refuses the requests. If `etag` is set, only
    responses with that ETag are accepted; a shard that responds with a different ETag counts as lost.
    """

    address: str
    node: str = ""
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Primary:
    """The shard that orders the scatters of a range, at `epoch`. `address` is "" while unknown."""

    node: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `start` to `stop` - 1. Each replica holds them as its resident tensor `tensor`, with row `start` first.

    In a table with keys, the range is the `row_count` rows whose keys have hashes from `start` to `stop` - 1. An open
    range accepts scatters and has a `primary`. Its `replicas` are the in-sync ones; the shards in `behind` are assigned
    to the range but out of sync. The rows of a range that is not open never change.
    """

    start: int
    stop: int
    tensor: str = ""
    """If "", `ShardedVersion` sets it to the name from `shard_tensor`."""
    replicas: tuple[Replica, ...] = ()
    primary: Primary | None = None
    behind: tuple[str, ...] = ()
    row_count: int | None = None

    @property
    def rows(self) -> int:
        """Number of rows in the range."""
        return self.stop - self.start if self.row_count is None else self.row_count


@dataclass(frozen=True)
class ShardedVersion:
    """One version of a table. Its ranges cover the rows in order, without gaps or overlaps.

    `content_id` is new for each published version and never reused. `created` is in nanoseconds since 1970. `sha256` is
    the digest of the items, or "" if unknown. `size` is the size of the items in bytes; for strings, the map must
    specify it. `note` is the publisher's note. A scalar, whose shape is (), counts as one row; shards hold it as a
    tensor of shape (1,). If the table has `keys`, its ranges cover key hashes instead of rows.
    """

    number: int
    content_id: str
    dtype: DTypeByName
    shape: tuple[int, ...]
    ranges: tuple[RowRange, ...]
    created: int = 0
    sha256: str = ""
    size: int = 0
    note: str = ""
    keys: KeyPlacement | None = None

    def __post_init__(self) -> None:
        ranges = tuple(
            one if one.tensor else replace(one, tensor=shard_tensor(self.content_id, one.start, one.stop))
            for one in self.ranges
        )
        object.__setattr__(self, "ranges", ranges)

    @property
    def rows(self) -> int:
        """The size of axis 0, or 1 for a scalar."""
        return rows_of(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all items in bytes. For strings without a size in the map, only their lengths count."""
        return nbytes(self.dtype, self.shape) if self.dtype.item_size else self.size or nbytes(self.dtype, self.shape)

    @property
    def etag(self) -> str:
        """The ETag of the table as uploaded. It differs from the ETags of the shards' tensors."""
        return self.etag_at(0)

    def etag_at(self, sequence: int) -> str:
        """Return the ETag that the version has when its ranges' sequences add up to `sequence`."""
        return f'"{self.content_id}-{sequence}"'

    @cached_property
    def is_open(self) -> bool:
        """Whether any of its ranges is open."""
        return any(one.primary is not None for one in self.ranges)

    @cached_property
    def stops(self) -> NDArray[np.int64]:
        """The `stop` of each range, as a read-only array."""
        found = np.array([one.stop for one in self.ranges], np.int64)
        found.flags.writeable = False
        return found

    def range_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the range index of each row in `rows`. All rows must be in [0, shape[0])."""
        return np.searchsorted(self.stops, rows, "right")

    @cached_property
    def first_hashes(self) -> NDArray[np.uint64]:
        """The first hash of each range of a table with keys, as a read-only array."""
        return first_hashes([one.start for one in self.ranges])

    @cached_property
    def row_bounds(self) -> Sequence[tuple[int, int]]:
        """The first row of each range and the row after its last one, in download order."""
        return bounds_of(one.rows for one in self.ranges)


@dataclass(frozen=True, slots=True)
class ShardedTable:
    """The kept versions of a table, oldest first. `live` is the number of the current version; 0 means the highest.

    `created` is when the name was created, in nanoseconds since 1970, or 0 if unknown. `replicas` is the desired number
    of shards for each range, or None if unknown.
    """

    versions: tuple[ShardedVersion, ...]
    live: int = 0
    created: int = 0
    replicas: int | None = None

    def __post_init__(self) -> None:
        if not self.live:
            object.__setattr__(self, "live", max((one.number for one in self.versions), default=0))

    def version(self, number: int) -> ShardedVersion | None:
        """Return the version with this number, or None if it is not kept."""
        return next((one for one in self.versions if one.number == number), None)

    @property
    def current(self) -> ShardedVersion:
        """The current version."""
        found = self.version(self.live)
        assert found is not None, "`ShardMap.check` has looked"
        return found


@dataclass(frozen=True)
class ShardMap:
    """All tables by name, and aliases. Each alias points to one version, written `NAME@7`.

    `alias_records` holds the times and ETags of aliases by name, if known.
    """

    generation: int = 0
    tables: Mapping[str, ShardedTable] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    alias_records: Mapping[str, Alias] = field(default_factory=dict)

    def check(self) -> None:
        """Raise BadShardMap if the map is invalid. Maps built from the catalogue are always valid."""
        _check(self)

    def find(self, reference: str) -> tuple[str, ShardedVersion] | None:
        """Return the table name and version for a reference (a name, `NAME@7` or an alias), or None if there is
        none.
        """
        name, number = split_reference(self.aliases.get(reference, reference))
        table = self.tables.get(name)
        if table is None:
            return None
        version = table.current if number is None else table.version(number)
        return None if version is None else (name, version)

    @cached_property
    def aliases_by_table(self) -> Mapping[str, Sequence[str]]:
        """The aliases that point to versions of each table, sorted."""
        found: dict[str, list[str]] = {}
        for alias, target in sorted(self.aliases.items()):
            found.setdefault(split_reference(target)[0], []).append(alias)
        return found

    def find_content(self, content_id: str) -> ShardedVersion | None:
        """Return the version with this content ID, or None."""
        found = self.locate_content(content_id)
        return None if found is None else found[1]

    def locate_content(self, content_id: str) -> tuple[str, ShardedVersion] | None:
        """Return the table name and version with this content ID, or None."""
        versions = ((name, version) for name, table in self.tables.items() for version in table.versions)
        return next((found for found in versions if found[1].content_id == content_id), None)

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of all replicas."""
        return frozenset(
            replica.address
            for table in self.tables.values()
            for version in table.versions
            for one in version.ranges
            for replica in one.replicas
        )

    @staticmethod
    def from_json(text: bytes | str) -> ShardMap:
        """Parse a map from JSON. Raises BadShardMap, whose message says where the error is."""
        try:
            found = _JSON.validate_json(text, strict=True, extra="forbid")
        except ValidationError as problem:
            raise _problem(problem) from None
        found.check()
        if not found.tables and "tables" not in orjson.loads(text):
            raise BadShardMap("the map: has no member 'tables'")
        return found


def rows_of(shape: Sequence[int]) -> int:
    """Return the number of rows of a tensor: the size of axis 0, or 1 for a scalar."""
    return shape[0] if shape else 1


def bounds_of(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first row of each range and the row after its last one, from the ranges' row counts."""
    stops = list(accumulate(rows))
    return list(zip([0, *stops], stops, strict=False))


def shard_tensor(content_id: str, start: int, stop: int) -> str:
    """Return the default name under which shards hold a range. The name is unique to the content ID."""
    return f"{content_id}.{start}-{stop}"


def content_of(tensor: str) -> str:
    """Return the content ID in a name returned by `shard_tensor`."""
    return tensor.rpartition(".")[0]


def digest_of(rows: str, keys: str | None) -> str:
    """Compute the digest of a segment from the digests of its rows and keys.

    The digest is the same on all shards that hold the segment.
    """
    return rows if keys is None else sha256(f"{rows} {keys}".encode()).hexdigest()


# Checks


def _check(found: ShardMap) -> None:
    if found.generation < 0:
        raise BadShardMap("generation: is negative")
    contents: set[str] = set()
    for name, table in found.tables.items():
        place = f"tables.{name}"
        _check_text(place, check_new_name, name)
        numbers = [version.number for version in table.versions]
        if not numbers:
            raise BadShardMap(f"{place}.versions: is empty")
        if numbers != sorted(set(numbers)) or not 1 <= numbers[0] <= numbers[-1] < 10**19:
            raise BadShardMap(f"{place}.versions: numbers are from 1 on and rise, and these are {numbers}")
        if table.live not in numbers:
            raise BadShardMap(f"{place}.live: no version has the number {table.live}; there are {numbers}")
        for version in table.versions:
            _check_version(f"{place}.versions[{version.number}]", version)
            if version.content_id in contents:
                raise BadShardMap(
                    f"{place}.versions[{version.number}].content_id: {version.content_id!r} is that of another version"
                )
            contents.add(version.content_id)
    for alias, target in found.aliases.items():
        _check_text(f"aliases.{alias}", check_new_name, alias)
        if alias in found.tables:
            raise BadShardMap(f"aliases.{alias}: a table has this name")
        own, number = split_reference(target)
        if number is None or own not in found.tables or found.tables[own].version(number) is None:
            raise BadShardMap(f"aliases.{alias}: {target!r} is no version of a table, written NAME@7")


def _check_version(place: str, version: ShardedVersion) -> None:
    if not _CONTENT_ID.fullmatch(version.content_id):
        raise BadShardMap(f"{place}.content_id: {version.content_id!r} is not 1 to 64 of A-Z a-z 0-9 . _ -")
    if min(version.shape, default=0) < 0:
        raise BadShardMap(f"{place}.shape: {list(version.shape)} has a negative size")
    if version.size < 0:
        raise BadShardMap(f"{place}.size: is negative")
    if prod(size for size in version.shape if size) * (version.dtype.item_size or 4) > NUMPY_BYTES:
        raise BadShardMap(f"{place}.shape: {list(version.shape)} has more than {NUMPY_BYTES} bytes")
    if version.keys is not None or any(one.row_count is not None for one in version.ranges):
        raise BadShardMap(f"{place}.keys: only the tables of a catalogue have keys")
    if len(version.ranges) > MAX_RANGES:
        raise BadShardMap(f"{place}.ranges: {len(version.ranges)} are more than {MAX_RANGES}")
    end = 0
    for number, one in enumerate(version.ranges):
        here = f"{place}.ranges[{number}]"
        if one.start != end:
            raise BadShardMap(f"{here}.start: {one.start} is not {end}, where the range before it stops")
        if one.stop <= one.start:
            raise BadShardMap(f"{here}.stop: {one.stop} is not behind its start, {one.start}")
        end = one.stop
        _check_text(f"{here}.tensor", check_reference, one.tensor)
        if not one.replicas:
            raise BadShardMap(f"{here}.replicas: is empty")
        if one.primary is not None:
            raise BadShardMap(f"{here}.primary: only the ranges of a catalogue take scatters")
        addresses = [replica.address for replica in one.replicas]
        for address in addresses:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise BadShardMap(f"{here}.replicas: {address!r} is no address of the form host:port")
        for replica in one.replicas:
            if not _NODE.fullmatch(replica.node):
                raise BadShardMap(f"{here}.replicas: {replica.node!r} is not the name of a shard")
        if len(set(addresses)) != len(addresses):
            raise BadShardMap(f"{here}.replicas: two have the same address")
    if end != version.rows:
        raise BadShardMap(f"{place}.ranges: the last one stops at {end}, and the table has {version.rows} rows")


def _check_text(place: str, check: Any, text: str) -> None:
    try:
        check(text)
    except GatherError as error:
        raise BadShardMap(f"{place}: {error.detail}") from None


# JSON


_JSON: Final = TypeAdapter(ShardMap)
_WANTED: Final = {
    "int_type": "an integer",
    "string_type": "a string",
    "tuple_type": "an array",
    "dict_type": "an object",
    "dataclass_type": "an object",
}
"""Expected JSON types, by pydantic's error types."""


def _problem(found: ValidationError) -> BadShardMap:
    """Convert pydantic's first error to a BadShardMap with our wording."""
    error = found.errors(include_url=False)[0]
    *way, last = error["loc"] or ("",)
    problem = error.get("ctx", {}).get("error")
    match error["type"]:
        case "json_invalid":
            return BadShardMap(f"the map is not JSON: {error['msg']}")
        case "missing":
            return BadShardMap(f"{_format_path(way)}: has no member {last!r}")
        case "unexpected_keyword_argument" | "extra_forbidden":
            return BadShardMap(f"{_format_path(way)}: has a member {last!r}, which is not known")
    if isinstance(problem, BadShardMap):
        return problem
    text = problem or f"is not {_WANTED.get(error['type'], 'as it should be')}"
    return BadShardMap(f"{_format_path([*way, last])}: {text}")


def _format_path(way: Sequence[int | str]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way)
    return text.lstrip(".") or "the map"

"""The shard map: which tables there are, in which row ranges each is cut, and which shards have each range.

It is immutable. A change of anything makes a new map with a higher generation, which takes the place of the old one in
one assignment; a request keeps the map with which it began, and so is of one version of each table.

As JSON, which a static map file has:

    {"generation": 1,
     "tables": {"items": {"live": 7, "versions": [
        {"number": 7, "content_id": "c81f02", "dtype": "float32", "shape": [200000, 64],
         "ranges": [{"start": 0, "stop": 100000, "tensor": "items.0@1",
                     "replicas": [{"address": "10.0.0.1:8080", "node": "a", "etag": "\\"9f31-0\\""}]}, ...]}]}},
     "aliases": {"items-prod": "items@7"}}

`generation`, `live` (the highest number), `tensor` (`shard_tensor`), `node` (the address) and `etag` may be left out. A
coordinator's map also has times: `created` of tables and versions, and `alias_times`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import GatherError
from app.tensors.dtypes import DTYPES, DType
from app.tensors.shape_limits import NUMPY_BYTES
from app.tensors.tensor import nbytes
from app.tensors.tensor_name import check_new_name, check_reference, split_reference

MAX_RANGES: Final = 1 << 16
_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_CONTENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class BadShardMap(ValueError):
    """A shard map that cannot be served; the text says where in it and why."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a range: a service at `address` (host:port) on machine `node`.

    With `etag` only answers from this content are taken; a shard that is asked for another content counts as lost.
    """

    address: str
    node: str = ""
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `start` to `stop` - 1, which each replica holds as its resident tensor `tensor`, row `start` first."""

    start: int
    stop: int
    tensor: str
    replicas: tuple[Replica, ...]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class ShardedVersion:
    """One version of a table: its ranges cover the rows in order, without hole or overlap.

    `content_id` is made anew for each version that is published, and used for no other. `created` is nanoseconds since
    1970; `sha256` that of the items, "" where it is not known; `size` their bytes, which of strings the map has to say.
    A scalar, of shape (), is one row, which shards hold as a tensor of shape (1,).
    """

    number: int
    content_id: str
    dtype: DType
    shape: tuple[int, ...]
    ranges: tuple[RowRange, ...]
    created: int = 0
    sha256: str = ""
    size: int = 0

    @property
    def rows(self) -> int:
        """The size of axis 0; 1 for a scalar."""
        return rows_of(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all items; of strings whose map does not say it, those of their lengths alone."""
        return nbytes(self.dtype, self.shape) if self.dtype.item_size else self.size or nbytes(self.dtype, self.shape)

    @property
    def etag(self) -> str:
        """The ETag of the table at this version, which is that of no shard."""
        return f'"{self.content_id}-0"'

    @cached_property
    def stops(self) -> NDArray[np.int64]:
        """Where each range ends; read-only."""
        found = np.array([one.stop for one in self.ranges], np.int64)
        found.flags.writeable = False
        return found

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each range begins."""
        return np.array([one.start for one in self.ranges], np.int64)

    def range_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.intp]:
        """Which range has each of `rows`, all of them in [0, shape[0])."""
        return np.searchsorted(self.stops, rows, "right")


@dataclass(frozen=True, slots=True)
class ShardedTable:
    """The versions of a table that are kept, the oldest first; `live` is the number of the current one.

    `created` is when its name came into being, in nanoseconds since 1970, 0 where that is not known.
    """

    versions: tuple[ShardedVersion, ...]
    live: int
    created: int = 0

    def version(self, number: int) -> ShardedVersion | None:
        """The version of this number, None where it is not kept."""
        return next((one for one in self.versions if one.number == number), None)

    @property
    def current(self) -> ShardedVersion:
        """The version that the name stands for."""
        found = self.version(self.live)
        assert found is not None, "`ShardMap` has checked it"
        return found


class AliasTimes(NamedTuple):
    """When an alias came into being and when it was last moved, in nanoseconds since 1970."""

    created: int
    modified: int


@dataclass(frozen=True)
class ShardMap:
    """All tables by name, and aliases, each of one version, written `NAME@7`. Raises BadShardMap unless it is sound.

    `alias_times` has the times of aliases by name, where they are known.
    """

    generation: int = 0
    tables: Mapping[str, ShardedTable] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    alias_times: Mapping[str, AliasTimes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    def find(self, reference: str) -> tuple[str, ShardedVersion] | None:
        """The table's name and the version that a reference names (a name, `NAME@7` or an alias), or None."""
        name, number = split_reference(self.aliases.get(reference, reference))
        table = self.tables.get(name)
        if table is None:
            return None
        version = table.current if number is None else table.version(number)
        return None if version is None else (name, version)

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

    def to_json(self) -> bytes:
        """The map as JSON, indented, its members in a fixed order."""
        return orjson.dumps(_as_json(self), option=orjson.OPT_INDENT_2)

    @staticmethod
    def from_json(text: bytes | str, *, strict: bool = True) -> ShardMap:
        """The map that JSON text says. Raises BadShardMap, which names the place.

        `strict` refuses members that are not known; else they are left out, as between two versions of the service.
        """
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise BadShardMap(f"the map is no JSON: {error}") from None
        return _read_map(_Member("", document, strict=strict))


def rows_of(shape: Sequence[int]) -> int:
    """How many rows a tensor has: the size of axis 0, and 1 where it is a scalar."""
    return shape[0] if shape else 1


def range_shape(shape: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    """The shape of rows `start` to `stop` - 1 as shards hold them."""
    return (stop - start, *shape[1:])


def shard_tensor(content_id: str, start: int, stop: int) -> str:
    """The name under which shards hold a range, where the map says no other: it is of one content alone."""
    return f"{content_id}.{start}-{stop}"


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
        addresses = [replica.address for replica in one.replicas]
        for address in addresses:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise BadShardMap(f"{here}.replicas: {address!r} is no address of the form host:port")
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


def _as_json(found: ShardMap) -> dict[str, Any]:
    return {
        "generation": found.generation,
        "tables": {
            name: {
                "live": table.live,
                "created": table.created,
                "versions": [_version_json(version) for version in table.versions],
            }
            for name, table in found.tables.items()
        },
        "aliases": dict(found.aliases),
        "alias_times": {name: list(times) for name, times in found.alias_times.items()},
    }


def _version_json(version: ShardedVersion) -> dict[str, Any]:
    return {
        "number": version.number,
        "content_id": version.content_id,
        "dtype": version.dtype.name,
        "shape": list(version.shape),
        "created": version.created,
        "sha256": version.sha256,
        "size": version.size,
        "ranges": [
            {
                "start": one.start,
                "stop": one.stop,
                "tensor": one.tensor,
                "replicas": [
                    {"address": replica.address, "node": replica.node}
                    | ({} if replica.etag is None else {"etag": replica.etag})
                    for replica in one.replicas
                ],
            }
            for one in version.ranges
        ],
    }


class _Member:
    """A member of the document, and where it stands; what is not as it has to be raises BadShardMap."""

    def __init__(self, place: str, value: object, *, strict: bool) -> None:
        self.place = place
        self.value = value
        self.strict = strict

    def refuse(self, wanted: str) -> NoReturn:
        """Raise the error that this should be something else."""
        raise BadShardMap(f"{self.place or 'the map'}: is not {wanted}")

    def fields(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, _Member]:
        """The members of an object that has all that are required, and none besides these."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        for name in required:
            if name not in self.value:
                raise BadShardMap(f"{self.place or 'the map'}: has no member {name!r}")
        for name in self.value if self.strict else ():
            if name not in required and name not in optional:
                raise BadShardMap(f"{self.place or 'the map'}: has a member {name!r}, which is not known")
        return {name: self._below(f"{self.place}.{name}".lstrip("."), value) for name, value in self.value.items()}

    def members(self) -> dict[str, _Member]:
        """The members of an object, whatever their names."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        return {name: self._below(f"{self.place}.{name}", value) for name, value in self.value.items()}

    def items(self) -> list[_Member]:
        """The items of an array."""
        if not isinstance(self.value, list):
            self.refuse("an array")
        return [self._below(f"{self.place}[{number}]", value) for number, value in enumerate(self.value)]

    def _below(self, place: str, value: object) -> _Member:
        return _Member(place, value, strict=self.strict)

    def integer(self) -> int:
        """An integer."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.refuse("an integer")
        return self.value

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            self.refuse("a string")
        return self.value


def _read_map(member: _Member) -> ShardMap:
    fields = member.fields(("tables",), ("generation", "aliases", "alias_times"))
    tables = {name: _read_table(one) for name, one in fields["tables"].members().items()}
    aliases = {name: one.text() for name, one in fields["aliases"].members().items()} if "aliases" in fields else {}
    times = fields["alias_times"].members() if "alias_times" in fields else {}
    alias_times = {name: _read_times(one) for name, one in times.items()}
    return ShardMap(_integer(fields, "generation", 0), tables, aliases, alias_times)


def _read_times(member: _Member) -> AliasTimes:
    times = [one.integer() for one in member.items()]
    if len(times) != 2:
        member.refuse("two times")
    return AliasTimes(*times)


def _read_table(member: _Member) -> ShardedTable:
    fields = member.fields(("versions",), ("live", "created"))
    versions = tuple(_read_version(one) for one in fields["versions"].items())
    live = _integer(fields, "live", max((one.number for one in versions), default=0))
    return ShardedTable(versions, live, _integer(fields, "created", 0))


def _read_version(member: _Member) -> ShardedVersion:
    fields = member.fields(("number", "content_id", "dtype", "shape", "ranges"), ("created", "sha256", "size"))
    dtype = DTYPES.get(fields["dtype"].text())
    if dtype is None:
        fields["dtype"].refuse(f"an element type; those are {', '.join(DTYPES)}")
    content_id = fields["content_id"].text()
    return ShardedVersion(
        fields["number"].integer(),
        content_id,
        dtype,
        tuple(size.integer() for size in fields["shape"].items()),
        tuple(_read_range(one, content_id) for one in fields["ranges"].items()),
        _integer(fields, "created", 0),
        fields["sha256"].text() if "sha256" in fields else "",
        _integer(fields, "size", 0),
    )


def _read_range(member: _Member, content_id: str) -> RowRange:
    fields = member.fields(("start", "stop", "replicas"), ("tensor",))
    start, stop = fields["start"].integer(), fields["stop"].integer()
    tensor = fields["tensor"].text() if "tensor" in fields else shard_tensor(content_id, start, stop)
    return RowRange(start, stop, tensor, tuple(_read_replica(one) for one in fields["replicas"].items()))


def _read_replica(member: _Member) -> Replica:
    fields = member.fields(("address",), ("node", "etag"))
    address = fields["address"].text()
    node = fields["node"].text() if "node" in fields else address
    return Replica(address, node, fields["etag"].text() if "etag" in fields else None)


def _integer(fields: Mapping[str, _Member], name: str, default: int) -> int:
    return fields[name].integer() if name in fields else default

"""The shard map: what is refused, and its JSON form."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from app.cluster.shard_map import (
    BadShardMap,
    Replica,
    RowRange,
    ShardedTable,
    ShardedVersion,
    ShardMap,
    shard_tensor,
)
from app.kernels.split_by_range import split
from app.tensors.dtypes import DTYPES
from tests.for_each import for_each

ADDRESS = "127.0.0.1:8081"


def cut(stops: list[int]) -> tuple[RowRange, ...]:
    starts = [0, *stops[:-1]]
    return tuple(
        RowRange(start, stop, f"t.{start}@1", (Replica(ADDRESS, "a"),))
        for start, stop in zip(starts, stops, strict=True)
    )


def version(number: int = 1, stops: list[int] | None = None, content_id: str = "c1") -> ShardedVersion:
    stops = [3, 7, 8] if stops is None else stops
    return ShardedVersion(number, content_id, DTYPES["float32"], (stops[-1], 2), cut(stops))


def written(found: ShardedVersion) -> dict[str, Any]:
    """A version as a map's file has it."""
    return asdict(found) | {"dtype": found.dtype.name, "ranges": [asdict(one) for one in found.ranges]}


def map_of_two() -> ShardMap:
    return ShardMap(4, {"items": ShardedTable((version(2), version(5, content_id="c2")), 5)}, {"prod": "items@2"})


def document() -> dict[str, Any]:
    """The map of two versions as JSON."""
    versions = [written(one) for one in map_of_two().tables["items"].versions]
    return {"generation": 4, "tables": {"items": {"live": 5, "versions": versions}}, "aliases": {"prod": "items@2"}}


def test_json_says_the_map() -> None:
    found = ShardMap.from_json(json.dumps(document()))
    assert found == map_of_two()
    assert found.addresses == {ADDRESS}


def test_references_name_a_version() -> None:
    found = ShardMap.from_json(json.dumps(document()))
    numbers = {name: found.find(name) for name in ("items", "items@2", "prod", "items@3", "prod@2", "other")}
    assert {name: one and (one[0], one[1].number) for name, one in numbers.items()} == {
        "items": ("items", 5),
        "items@2": ("items", 2),
        "prod": ("items", 2),
        "items@3": None,
        "prod@2": None,
        "other": None,
    }


def test_what_may_be_left_out() -> None:
    short = document()
    one = short["tables"]["items"]["versions"][0]
    del short["generation"], short["aliases"], short["tables"]["items"]["live"], one["created"], one["sha256"]
    del one["ranges"][0]["tensor"], one["ranges"][0]["replicas"][0]["node"]
    found = ShardMap.from_json(json.dumps(short))
    table = found.tables["items"]
    assert (found.generation, found.aliases, table.live) == (0, {}, 5)
    assert table.versions[0].ranges[0] == RowRange(0, 3, shard_tensor("c1", 0, 3), (Replica(ADDRESS),))


WRONG: list[tuple[str, Any, str]] = [
    ("tables.items.versions.0", {}, r"versions\[0\]: has no member 'number'"),
    ("generation", -1, "generation: is negative"),
    ("generation", True, "generation: is not an integer"),
    ("further", 1, "the map: has a member 'further', which is not known"),
    ("tables", [], "tables: is not an object"),
    ("tables.items.live", 3, r"tables.items.live: no version has the number 3; there are \[2, 5\]"),
    ("tables.items.versions", [], "tables.items.versions: is empty"),
    ("tables.items.versions", {}, "tables.items.versions: is not an array"),
    ("tables.items.versions.0.number", 5, "numbers are from 1 on and rise"),
    ("tables.items.versions.0.number", 0, "numbers are from 1 on and rise"),
    ("tables.items.versions.1.content_id", "c1", "'c1' is that of another version"),
    ("tables.items.versions.1.content_id", "c/1", "'c/1' is not 1 to 64 of"),
    ("tables.items.versions.0.dtype", "float", r"versions\[0\].dtype: is not an element type"),
    ("tables.items.versions.0.shape", [], "the last one stops at 8, and the table has 1 rows"),
    ("tables.items.versions.0.shape", [8, -1], "has a negative size"),
    ("tables.items.versions.0.shape", [8, 2**62], "has more than 9223372036854775807 bytes"),
    ("tables.items.versions.0.shape", [9, 2], "the last one stops at 8, and the table has 9 rows"),
    ("tables.items.versions.0.shape", [8, "2"], r"versions\[0\].shape\[1\]: is not an integer"),
    ("tables.items.versions.0.ranges.1.start", 4, r"ranges\[1\].start: 4 is not 3, where the range before it stops"),
    ("tables.items.versions.0.ranges.1.start", 2, r"ranges\[1\].start: 2 is not 3"),
    ("tables.items.versions.0.ranges.0.stop", 0, r"ranges\[0\].stop: 0 is not behind its start, 0"),
    ("tables.items.versions.0.ranges.0.replicas.0.node", "a\r\nb: c", "is not the name of a shard"),
    ("tables.items.versions.0.ranges.0.tensor", "a/b", r"ranges\[0\].tensor: the name of a tensor is"),
    ("tables.items.versions.0.ranges.0.replicas", [], r"ranges\[0\].replicas: is empty"),
    ("tables.items.versions.0.ranges.0.replicas.0.address", "8081", "'8081' is no address of the form host:port"),
    ("tables.items.versions.0.ranges.0.replicas.0.address", "a:65536", "'a:65536' is no address"),
    ("tables.items.versions.0.ranges.0.replicas.0.address", "a b:1\r\n", "is no address"),
    ("tables.items.versions.0.ranges.0.replicas.0.etag", 1, r"replicas\[0\].etag: is not a string"),
    ("aliases", {"items": "items@2"}, "aliases.items: a table has this name"),
    ("aliases", {"prod": "items"}, "aliases.prod: 'items' is no version of a table, written NAME@7"),
    ("aliases", {"prod": "items@3"}, "aliases.prod: 'items@3' is no version"),
    ("aliases", {"a/b": "items@2"}, "aliases.a/b: the name of a tensor is"),
    ("tables", {"gathernd": {"versions": []}}, "tables.gathernd: the name 'gathernd' is reserved"),
]


@for_each(("path", "value", "message"), WRONG)
def test_an_unsound_map_is_refused_with_its_place(path: str, value: Any, message: str) -> None:
    whole: Any = document()
    *way, last = path.split(".")
    member = whole
    for step in way:
        member = member[int(step) if step.isdigit() else step]
    member[int(last) if last.isdigit() else last] = value
    with pytest.raises(BadShardMap, match=message):
        ShardMap.from_json(json.dumps(whole))


def test_two_replicas_of_a_range_are_two_services() -> None:
    twice = RowRange(0, 2, "t@1", (Replica(ADDRESS, "a"), Replica(ADDRESS, "b")))
    with pytest.raises(BadShardMap, match="two have the same address"):
        ShardMap(0, {"t": ShardedTable((ShardedVersion(1, "c", DTYPES["int8"], (2,), (twice,)),), 1)}).check()


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadShardMap, match="the map is not JSON"):
        ShardMap.from_json("{")


def test_a_map_names_its_tables_also_if_it_has_none() -> None:
    assert ShardMap.from_json('{"tables": {}}') == ShardMap()
    for text in ("{}", '{"generation": 3}'):
        with pytest.raises(BadShardMap, match="the map: has no member 'tables'"):
            ShardMap.from_json(text)


def test_a_table_without_rows_has_no_range() -> None:
    empty = ShardedVersion(1, "c", DTYPES["float32"], (0, 4), ())
    found = ShardMap(0, {"t": ShardedTable((empty,), 1)})
    text = json.dumps({"tables": {"t": {"versions": [written(empty)]}}})
    assert ShardMap.from_json(text) == found
    assert split(np.empty(0, np.int64), (0,), True, empty.stops).ranges == []

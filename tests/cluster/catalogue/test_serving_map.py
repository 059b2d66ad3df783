"""The map that routers serve by: sound, of the catalogue's revision, and with the parts of the one before."""

from __future__ import annotations

from app.cluster.catalogue import ranges, transitions
from app.cluster.catalogue.records import Catalogue, Change, Node, Options
from app.cluster.catalogue.serving_map import ServingMap
from app.cluster.shard_map import Primary
from tests.cluster.catalogue.applying import applied
from tests.cluster.catalogue.test_transitions import THREE, published, put


def with_node(catalogue: Catalogue, name: str, node: Node | None) -> Catalogue:
    return applied(catalogue, Change({f"nodes/{name}": node}))


def test_it_has_the_tables_and_aliases_at_the_addresses_of_the_shards() -> None:
    catalogue = put(published(published(THREE, "x", keep=2), "y", keep=2), now="t@1")
    found = ServingMap().of(catalogue)
    found.check()
    assert (found.generation, found.aliases) == (catalogue.revision, {"now": "t@1"})
    assert found.alias_records["now"] == catalogue.aliases["now"]
    table = found.tables["t"]
    assert ([one.number for one in table.versions], table.live) == ([1, 2], 2)
    for one, segment in zip(table.current.ranges, catalogue.tables["t"].versions[1].segments, strict=True):
        assert one.tensor == f"y.{segment.start}-{segment.stop}"
        assert {(replica.node, replica.address) for replica in one.replicas} == {(n, f"{n}:1") for n in segment.nodes}


def test_only_what_has_changed_is_made_anew() -> None:
    maps = ServingMap()
    catalogue = published(published(THREE, "x"), "y", "u")
    before = maps.of(catalogue)
    after = maps.of(put(catalogue, now="t@1"))
    assert after.tables["t"] is before.tables["t"]
    newer = maps.of(published(catalogue, "z", "u"))
    assert newer.tables["t"] is before.tables["t"]
    assert newer.tables["u"] is not before.tables["u"]


def test_a_shard_at_another_address_is_asked_there() -> None:
    maps = ServingMap()
    catalogue = published(THREE, "x")
    maps.of(catalogue)
    moved = maps.of(with_node(catalogue, "a", Node("elsewhere:1", 1000)))
    assert "elsewhere:1" in moved.addresses
    assert "a:1" not in moved.addresses


def test_a_shard_whose_address_is_not_known_is_left_out() -> None:
    catalogue = published(THREE, "x")
    nodes = catalogue.tables["t"].versions[0].segments[0].nodes
    unknown = ServingMap().of(with_node(catalogue, nodes[0], None))
    assert [one.node for one in unknown.tables["t"].current.ranges[0].replicas] == [nodes[1]]


def test_of_two_shards_at_one_address_each_is_asked_by_its_name() -> None:
    catalogue = published(THREE, "x")
    first, second = catalogue.tables["t"].versions[0].segments[0].nodes
    found = ServingMap().of(with_node(catalogue, first, Node(f"{second}:1", 1000)))
    replicas = found.tables["t"].current.ranges[0].replicas
    assert {(one.node, one.address) for one in replicas} == {(first, f"{second}:1"), (second, f"{second}:1")}


def test_it_tells_the_replicas_of_a_table_and_those_of_the_options() -> None:
    maps = ServingMap()
    catalogue = published(published(THREE, "x"), "y", "u")
    catalogue = applied(catalogue, transitions.set_replicas(catalogue, "u", 3))
    assert [maps.of(catalogue).tables[name].replicas for name in "tu"] == [2, 3]
    catalogue = applied(catalogue, transitions.set_options(catalogue, Options(), {"replicas": 1}))
    assert [maps.of(catalogue).tables[name].replicas for name in "tu"] == [1, 3]


def test_a_table_without_versions_is_not_served() -> None:
    catalogue = published(THREE, "x")
    catalogue = applied(catalogue, transitions.remove_versions(catalogue, "t@1"))
    assert ServingMap().of(catalogue).tables == {}


def test_open_ranges_have_their_primary_and_are_read_from_replicas_in_sync() -> None:
    maps = ServingMap()
    catalogue = published(published(THREE, "x"), "y", "u")
    before = maps.of(catalogue)
    assert not before.tables["t"].current.is_open
    catalogue = applied(catalogue, ranges.open_ranges(catalogue, "t", 1))
    opened = maps.of(catalogue)
    assert opened.tables["u"] is before.tables["u"]
    for one in opened.tables["t"].current.ranges:
        record = catalogue.ranges[one.tensor]
        assert one.primary == Primary(record.primary, f"{record.primary}:1", 1)
        assert {replica.node for replica in one.replicas} == set(record.in_sync)
    one = opened.tables["t"].current.ranges[0]
    assert one.primary is not None
    other = next(replica.node for replica in one.replicas if replica.node != one.primary.node)
    catalogue = applied(catalogue, ranges.leave_in_sync(catalogue, one.tensor, 1, frozenset({other})))
    left = maps.of(catalogue).tables["t"].current.ranges
    assert [replica.node for replica in left[0].replicas] == [one.primary.node]
    assert left[0].primary == Primary(one.primary.node, one.primary.address, 2)
    assert left[0].behind == (other,)
    assert left[1] == opened.tables["t"].current.ranges[1]

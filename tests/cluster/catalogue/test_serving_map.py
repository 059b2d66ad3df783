"""The map that routers serve by: sound, of the catalogue's revision, and with the parts of the one before."""

from __future__ import annotations

from app.cluster.catalogue import ranges
from app.cluster.catalogue.records import Catalogue, Change, Node
from app.cluster.catalogue.serving_map import ServingMap
from app.cluster.shard_map import Primary
from tests.cluster.catalogue.applying import applied
from tests.cluster.catalogue.test_transitions import THREE, published, put


def with_node(catalogue: Catalogue, name: str, node: Node | None) -> Catalogue:
    return applied(catalogue, Change({f"nodes/{name}": node}))


def test_only_what_has_changed_is_made_anew() -> None:
    maps = ServingMap()
    catalogue = published(published(THREE, "x"), "y", "u")
    before = maps.of(catalogue)
    after = maps.of(put(catalogue, now="t@1"))
    assert after.tables["t"] is before.tables["t"]
    newer = maps.of(published(catalogue, "z", "u"))
    assert newer.tables["t"] is before.tables["t"]
    assert newer.tables["u"] is not before.tables["u"]


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

"""Where ranges go: most room first, two replicas never on one machine, and nothing is moved to and fro."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.cluster.catalogue.node_choice import choose_move, choose_nodes, count_zone_overlaps
from app.cluster.catalogue.transitions import segment_bounds


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_bounds_cover_all_rows_in_ranges_of_nearly_equal_size(rows: int, ranges: int) -> None:
    bounds = segment_bounds(rows, ranges)
    sizes = [stop - start for start, stop in bounds]
    assert sum(sizes) == rows
    assert len(bounds) == min(rows, ranges)
    assert not sizes or min(sizes) >= max(max(sizes) - 1, 1)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])][: len(bounds)]


def test_most_room_comes_first_and_machines_without_room_do_not_come() -> None:
    assert choose_nodes({"a": 5, "b": 9, "c": 9, "d": 4}, 5, 3) == ["b", "c", "a"]
    assert choose_nodes({"a": 5, "b": 9}, 5, 2, beside=["b"]) == ["a"]


def test_replicas_are_in_zones_of_their_own_while_there_are_such() -> None:
    zones = {"a": "east", "b": "east", "c": "west", "d": ""}
    free = {"a": 9, "b": 8, "c": 2, "d": 1}
    assert choose_nodes(free, 1, 2, zones) == ["a", "c"]
    assert choose_nodes(free, 1, 4, zones) == ["a", "c", "d", "b"]
    assert choose_nodes(free, 1, 1, zones, beside=["c"]) == ["a"]
    assert choose_nodes(free, 5, 2, zones) == ["a", "b"], "the other zone has no room"


ZONES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["", "east", "west"]))


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=12), ZONES)
def test_moves_end_and_leave_machines_even(ranges: list[tuple[int, str, str]], zones: dict[str, str]) -> None:
    """Each range on one or two of four machines; moved until nothing moves."""
    places = [(size, sorted({one, other})) for size, one, other in ranges]
    crowded = sum(count_zone_overlaps(nodes, zones) for _, nodes in places)
    for _ in range(200):
        on_node = {node: [one for one in places if node in one[1]] for node in "abcd"}
        used = {node: sum(size for size, _ in own) for node, own in on_node.items()}
        move = choose_move(used, dict.fromkeys("abcd", 10**6), on_node, zones)
        if move is None:
            assert sum(count_zone_overlaps(nodes, zones) for _, nodes in places) <= crowded
            return
        source, number, target = move
        size, nodes = on_node[source][number]
        assert target not in nodes
        assert used[target] + size <= used[source] - size
        places.remove((size, nodes))
        places.append((size, sorted({*nodes, target} - {source})))
    raise AssertionError("ranges are moved without end")

"""How the catalogue changes: each rule by name, and any order of changes, made and judged late, keeps it sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalogue.aliases import AliasMove, move_aliases
from app.cluster.catalogue import transitions
from app.cluster.catalogue.records import Catalogue, Change, Mark, Node, Options, Segment, Version
from app.cluster.catalogue.serving_map import ServingMap
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from tests.cluster.catalogue.applying import applied, stands
from tests.conftest import samples

FLOAT32 = DTYPES["float32"]


def with_nodes(**zones: str) -> Catalogue:
    """A catalogue of shards that run, each with room for 1,000 bytes, by their zones."""
    catalogue = Catalogue(options=Options(ranges=2, replicas=2))
    records: dict[str, Any] = {f"nodes/{name}": Node(f"{name}:1", 1000, zone) for name, zone in zones.items()}
    records |= {f"alive/{name}": Mark() for name in zones} | {"options": catalogue.options}
    return applied(catalogue, Change(records))


THREE = with_nodes(a="", b="", c="")


def begun(catalogue: Catalogue, content: str, table: str = "t", rows: int = 4) -> Catalogue:
    bounds = [Segment(start, stop, (stop - start) * 4) for start, stop in transitions.segment_bounds(rows, 2)]
    return applied(catalogue, transitions.begin_upload(catalogue, content, table, bounds))


def version_of(catalogue: Catalogue, content: str, rows: int = 4) -> Version:
    segments = tuple(replace(one, sha256="d") for one in catalogue.uploads[content].segments)
    return Version(0, content, FLOAT32, (rows,), segments, catalogue.revision, "all", rows * 4)


def published(catalogue: Catalogue, content: str, table: str = "t", keep: int = 1) -> Catalogue:
    catalogue = begun(catalogue, content, table)
    return applied(catalogue, transitions.publish(catalogue, table, version_of(catalogue, content), keep))


def numbers(catalogue: Catalogue, table: str = "t") -> list[int]:
    return [one.number for one in catalogue.tables[table].versions]


def moving(catalogue: Catalogue, at: int, **targets: str) -> Change | None:
    made = move_aliases(
        [AliasMove(*one) for one in targets.items()], catalogue.record_of, at, [f'"{at}"' for _ in targets]
    )
    return transitions.put_aliases(alias for alias, _ in made if alias.modified == at)


def put(catalogue: Catalogue, **targets: str) -> Catalogue:
    return applied(catalogue, moving(catalogue, catalogue.revision, **targets))


def refused(code: str, make: Callable[[], object]) -> None:
    with pytest.raises(GatherError) as refusal:
        make()
    assert refusal.value.code == code


# Uploads


def test_an_upload_is_placed_where_there_is_room_on_shards_that_run_and_are_not_drained() -> None:
    catalogue = with_nodes(a="", b="", c="", d="", e="")
    catalogue = applied(catalogue, transitions.mark_lost(catalogue, "a"))
    catalogue = applied(catalogue, transitions.drain(catalogue, "b"))
    catalogue = begun(catalogue, "x")
    segments = catalogue.uploads["x"].segments
    assert [(one.start, one.stop, one.size) for one in segments] == [(0, 2, 8), (2, 4, 8)]
    assert all(len(set(one.nodes)) == 2 and set(one.nodes) <= set("cde") for one in segments)
    assert transitions.free_bytes(catalogue) == {
        node: 1000 - 8 * sum(node in one.nodes for one in segments) for node in "cde"
    }


def test_an_upload_without_room_is_refused() -> None:
    refused("insufficient_storage", lambda: begun(THREE, "x", rows=1000))
    with pytest.raises(GatherError, match="needs 2 shards with room; 1 shards are running and not drained") as refusal:
        begun(with_nodes(a=""), "x")
    assert refusal.value.code == "insufficient_storage"


def test_a_lost_shard_of_an_upload_is_replaced_by_another() -> None:
    catalogue = begun(THREE, "x")
    first = catalogue.uploads["x"].segments[0]
    lost = first.nodes[0]
    moved = applied(catalogue, transitions.move_upload(catalogue, "x", 0, lost))
    (other,) = set("abc") - set(first.nodes)
    assert moved.uploads["x"].segments[0].nodes == (first.nodes[1], other)
    assert moved.uploads["x"].segments[1] == catalogue.uploads["x"].segments[1]
    assert transitions.move_upload(moved, "x", 0, lost) is None


def test_what_was_given_up_cannot_be_published() -> None:
    catalogue = begun(THREE, "x")
    version = version_of(catalogue, "x")
    ended = applied(catalogue, transitions.end_upload(catalogue, "x"))
    assert transitions.end_upload(ended, "x") is None
    refused("shard_unavailable", lambda: transitions.publish(ended, "t", version))
    refused("shard_unavailable", lambda: transitions.move_upload(ended, "x", 0, "a"))


def test_rows_on_other_shards_than_the_upload_says_are_not_published() -> None:
    catalogue = begun(THREE, "x")
    version = version_of(catalogue, "x")
    moved = applied(catalogue, transitions.move_upload(catalogue, "x", 0, version.segments[0].nodes[0]))
    refused("shard_unavailable", lambda: transitions.publish(moved, "t", version))


# Versions


def test_an_upload_whose_beginning_comes_once_more_after_its_version_is_removed_does_not_begin() -> None:
    bounds = [Segment(0, 4, 16)]
    for removed in (False, True):
        late = transitions.begin_upload(THREE, "one", "t", bounds)
        assert late is not None
        catalogue = published(THREE, "one")
        if removed:
            catalogue = applied(catalogue, transitions.remove_versions(catalogue, "t@1"))
        assert not stands(THREE, late, catalogue)


def test_numbers_of_tables_that_are_forgotten_never_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "REMEMBERED", 2)
    monkeypatch.setattr(transitions, "_FORGOTTEN_AT_ONCE", 1)
    catalogue = THREE
    for count, name in enumerate(["first", "second", "third", "fourth"], 1):
        for turn in range(count):
            catalogue = published(catalogue, f"{name}-{turn}", name)
        catalogue = applied(catalogue, transitions.remove_versions(catalogue, name))
    assert set(catalogue.tables) == {"third", "fourth"}
    for name in ("first", "third", "new"):
        catalogue = published(catalogue, f"{name}-again", name)
    assert {name: numbers(catalogue, name) for name in ("first", "third", "new")} == {
        "first": [3],
        "third": [4],
        "new": [3],
    }


# Aliases


def test_an_alias_of_a_version_that_is_removed_meanwhile_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the table, and then its record, has gone."""
    monkeypatch.setattr(transitions, "REMEMBERED", 1)
    judged_by = published(published(THREE, "x"), "y", "u")
    change = moving(judged_by, 1, now="t@1")
    assert change is not None
    assert stands(judged_by, change, judged_by)
    now = judged_by
    for name in ("t", "u"):
        now = applied(now, transitions.remove_versions(now, name))
        assert not stands(judged_by, change, now)
    assert "t" not in now.tables


# Shards and segments


def test_a_shard_that_may_come_back_or_is_needed_is_not_forgotten() -> None:
    refused("precondition_failed", lambda: transitions.forget_node(THREE, "a"))
    catalogue = published(THREE, "x")
    first, second = nodes(catalogue)
    lost = applied(catalogue, Change({f"alive/{first}": None}))
    change = transitions.forget_node(lost, first)
    assert change is not None, "another one that runs has the rows"
    assert first not in applied(lost, change).nodes
    assert not stands(lost, change, applied(lost, Change({f"alive/{first}": Mark()}))), "it has come back meanwhile"
    assert not stands(lost, change, published(lost, "y", "u")), "it may have been given something meanwhile"
    lost = applied(lost, Change({f"alive/{second}": None}))
    refused("tensor_in_use", lambda: transitions.forget_node(lost, first))
    writing = begun(THREE, "x")
    node = writing.uploads["x"].segments[0].nodes[0]
    writing = applied(writing, Change({f"alive/{node}": None}))
    refused("tensor_in_use", lambda: transitions.forget_node(writing, node))


def nodes(catalogue: Catalogue) -> tuple[str, ...]:
    return catalogue.tables["t"].versions[0].segments[0].nodes


# Any order


TABLES, CONTENTS, ALIASES = ("t", "u", "v"), tuple("klmnopq"), ("t", "one", "two")


def judged(catalogue: Catalogue, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Change | None:
    """A change of some kind; None where it is refused."""
    content, table = draw(st.sampled_from(CONTENTS)), draw(st.sampled_from(TABLES))
    try:
        match draw(st.integers(0, 5)):
            case 0:
                bounds = [Segment(start, stop, 4 * (stop - start)) for start, stop in transitions.segment_bounds(4, 2)]
                return transitions.begin_upload(catalogue, content, table, bounds)
            case 1:
                upload = catalogue.uploads.get(content)
                if upload is None:
                    return None
                keep = draw(st.integers(1, 2))
                return transitions.publish(catalogue, upload.table, version_of(catalogue, content), keep)
            case 2:
                reference = draw(st.sampled_from([table, *(f"{table}@{number}" for number in range(1, 5))]))
                return transitions.remove_versions(catalogue, reference)
            case 3:
                names = draw(st.lists(st.sampled_from(ALIASES), min_size=1, unique=True))
                moves = {name: f"{table}@{draw(st.integers(1, 4))}" for name in names}
                return moving(catalogue, 1, **moves)
            case 4:
                return transitions.remove_alias(catalogue, draw(st.sampled_from(ALIASES)))
            case _:
                return transitions.end_upload(catalogue, content)
    except GatherError:
        return None


@given(st.data())
@settings(max_examples=samples(300), deadline=None)
def test_changes_in_any_order_judged_early_and_made_late_keep_the_catalogue_sound(data: st.DataObject) -> None:
    before = now = THREE
    seen: dict[tuple[str, int], str] = {}
    used = set()
    for _ in range(data.draw(st.integers(1, 25))):
        judged_by = data.draw(st.sampled_from([before, now]))
        change = judged(judged_by, data.draw)
        content = next((key for key in (change.puts if change else ()) if key.startswith("uploads/")), None)
        if content is not None and change is not None and change.puts[content] is not None:
            if content in used:  # a content id is used once
                continue
            used.add(content)
        if change is None or not stands(judged_by, change, now):
            continue
        before, now = now, applied(now, change)
        ServingMap().of(now).check()  # no name twice, all aliases name versions, numbers rise
        for name, table in now.tables.items():
            for version in table.versions:
                assert seen.setdefault((name, version.number), version.content_id) == version.content_id
                assert version.number <= table.last_number
        for one in now.aliases.values():
            assert now.record_of(one.name).version(one.version)

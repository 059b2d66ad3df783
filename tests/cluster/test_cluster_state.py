"""What a coordinator's record keeps of what is gone: of so many names, and no number or change counts twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.cluster.coordinator import cluster_state
from app.cluster.coordinator.cluster_state import ChangeRefused, ClusterState, Content, change, publish
from app.cluster.coordinator.message_json import record_from_json, record_to_json
from app.cluster.coordinator.messages import Change, RangeKey
from app.cluster.shard_map import Replica


@pytest.fixture(autouse=True)
def _remembers_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "REMEMBERED", 2)


def durable(state: ClusterState) -> ClusterState:
    """The next record, as it is read again."""
    return record_from_json(record_to_json(replace(state, map=replace(state.map, generation=state.generation + 1))))


def published(state: ClusterState, name: str) -> ClusterState:
    content = f"content-{state.generation}"
    key = RangeKey(content, 0, 4)
    made = Content(content, name, "float32", (4,), 4, digests=("",))
    return durable(publish(state, made, {key: (Replica("a:1", "a"),)}, keep=1))


def changed(state: ClusterState, what: str, subject: str, value: str = "", known: int | None = None) -> ClusterState:
    generation = state.generation if known is None else known
    asked = Change(f"{what}-{subject}-{state.generation}", what, subject, value, generation, 0)  # type: ignore[arg-type]
    return durable(change(state, asked))


def test_of_tables_that_were_removed_the_last_are_known_and_no_number_comes_again() -> None:
    state = ClusterState()
    for count, name in enumerate(["first", "second", "third", "fourth"], 1):
        for _ in range(count):
            state = published(state, name)
        state = changed(state, "remove", name, str(state.map.tables[name].live))
    assert set(state.tables) == {"third", "fourth"}
    for name in ("first", "third", "new"):
        state = published(state, name)
    assert {name: table.live for name, table in state.map.tables.items()} == {"first": 3, "third": 4, "new": 3}
    assert state.contents.keys() == {table.current.content_id for table in state.map.tables.values()}


def test_tables_that_are_there_are_never_forgotten() -> None:
    state = ClusterState()
    for name in "abcdef":
        state = published(state, name)
    state = changed(changed(state, "remove", "a", "1"), "remove", "b", "1")
    assert set(state.tables) == set("abcdef")


def test_of_changes_of_what_is_gone_the_last_are_known_and_an_older_one_that_comes_late_is_refused() -> None:
    state = published(ClusterState(), "t")
    late = state.generation
    for alias in "abcd":
        state = changed(changed(state, "put_alias", alias, "t@1"), "remove_alias", alias)
    state = changed(state, "put_alias", "kept", "t@1")
    for node in ("m", "n"):
        state = changed(changed(state, "drain", node), "undrain", node)
    state = changed(state, "drain", "leaving")
    assert set(state.changes) == {"alias:kept", "node:leaving", "node:m", "node:n"}
    for what, subject, value in (("put_alias", "a", "t@1"), ("put_alias", "new", "t@1"), ("drain", "other", "")):
        with pytest.raises(ChangeRefused, match="has been changed"):
            changed(state, what, subject, value, known=late)
        assert changed(state, what, subject, value).generation == state.generation + 1

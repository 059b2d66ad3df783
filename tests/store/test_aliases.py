"""Aliases: made, moved and removed in one step, seen by all workers, and what they keep from going."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from app.catalogue.aliases import AliasMove
from app.catalogue.records import Alias
from app.errors import GatherError
from app.errors.hints import hint_of
from app.store import Conditions, LocalStore, Quota
from app.store.files import disk_writes
from app.store.files.mapped_tensor import MappedContent
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from tests.store.helpers import answered, files, opened, put, put_alias, read, scatter, strings, uploaded


@pytest.fixture
def items(store: LocalStore) -> LocalStore:
    """A store with three versions of `items`, each full of its number."""
    for number in range(1, 4):
        put(store, "items", np.full(3, number), keep=3)
    return store


def refused(code: str, work: Callable[..., object], *arguments: object) -> GatherError:
    with pytest.raises(GatherError) as error:
        work(*arguments)
    assert error.value.code == code, error.value
    assert hint_of(error.value, 1)
    return error.value


def test_an_alias_names_one_version_and_moves_in_one_step_for_every_process(
    items: LocalStore, other: LocalStore
) -> None:
    alias, created = put_alias(items, "live", "items@2")
    assert (alias.alias, alias.name, alias.version, created) == ("live", "items", 2, True)
    for number in (2, 3, 1):
        moved, created = put_alias(items, "live", f"items@{number}")
        assert not created
        for each in (items, other):
            assert read(each, "live").tolist() == [number] * 3
            resident = each.get("live")
            assert resident is not None
            assert resident.data_version == number
            assert resident.etag == each.metadata(f"items@{number}").etag
            assert each.metadata("live") == each.metadata(f"items@{number}")
            assert each.alias("live") == moved
            assert each.version_numbers("live") == [number]
    put(items, "items", np.full(3, 4), keep=4)
    assert read(other, "live").tolist() == [1, 1, 1]


def test_it_survives_a_restart_with_its_etag(items: LocalStore) -> None:
    alias, _ = put_alias(items, "live", "items@2")
    items.close()
    store = opened(items.folder)
    assert store.alias("live") == alias
    assert read(store, "live").tolist() == [2, 2, 2]
    store.close()


def test_an_upload_that_began_before_an_alias_took_its_name_is_refused(items: LocalStore) -> None:
    upload = uploaded(items, UploadSpec("live", DTYPES["int8"], (3,)), b"abc", 3)
    put_alias(items, "live", "items@1")
    refused("name_conflict", items.put, upload)
    assert not [path for path in files(items.folder) if path.startswith("incoming")]


def test_there_are_no_more_aliases_than_tensors_may_be(folder: Path) -> None:
    store = opened(folder, Quota(tensors=2))
    put(store, "items", np.arange(3))
    for name in ("a", "b", "a"):
        put_alias(store, name, "items@1")
    error = refused("insufficient_storage", put_alias, store, "c", "items@1")
    assert error.facts == {"limit": "store_aliases", "maximum": 2}
    put(store, "more", np.arange(3))  # aliases are no tensors
    store.close()


def test_strings_that_a_scatter_changes_are_read_through_it_by_every_process(
    store: LocalStore, other: LocalStore
) -> None:
    put(store, "words", strings("a", "b"))
    put_alias(store, "live", "words@1")
    assert read(other, "live").tolist() == ["a", "b"]
    scatter(store, "words", [[0]], strings("longer"))
    assert read(other, "live").tolist() == ["longer", "b"]
    scatter(other, "live", [[1]], strings("too"))
    assert read(store, "words@1").tolist() == ["longer", "too"]


def test_a_key_given_with_it_gets_the_first_answer_wherever_it_names_now(items: LocalStore, other: LocalStore) -> None:
    put(items, "users", np.arange(3))
    put_alias(items, "live", "items@1")
    first = scatter(items, "live", [[0]], np.array([1]), "add", key="k")
    for target in ("items@2", "users@1", "items@1", "items@3"):
        put_alias(items, "live", target)
        for each in (items, other):
            assert scatter(each, "live", [[0]], np.array([1]), "add", key="k") == first
    found = items.find_answer("live", "k", "digest")
    assert found is not None
    assert found.version == 1
    items.delete_alias("live")
    assert answered(other, "live", "k", "digest") == first
    put(items, "live", np.arange(4))  # a tensor of that name
    assert scatter(other, "live", [[0]], np.array([1]), "add", key="k") == first
    assert [read(items, name)[0] for name in ("items@1", "items@2", "users", "live")] == [2, 2, 0, 0]
    assert answered(items, "items@1", "k", "digest") is None  # a key belongs to the name that it was given with


def test_a_move_and_a_removal_of_its_target_at_the_same_time_leave_no_alias_of_nothing(
    items: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_alias(items, "live", "items@1")
    real = disk_writes.commit
    begun, go_on = Event(), Event()

    def slow(connection: object) -> None:
        begun.set()
        go_on.wait(60)
        real(connection)  # type: ignore[arg-type]

    outcomes: list[object] = []

    def move() -> None:
        try:
            outcomes.append(put_alias(other, "live", "items@2"))
        except GatherError as error:
            outcomes.append(error.code)

    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "commit", slow)
        removal = Thread(target=lambda: items.delete("items@2"))
        removal.start()
        assert begun.wait(60)
        mover = Thread(target=move)
        mover.start()
        go_on.set()
        removal.join()
        mover.join()
    assert outcomes == ["tensor_not_found"]
    assert read(items, "live").tolist() == [1, 1, 1]
    assert items.alias("live").version == 1


def moving_before_the_first_mapping(monkeypatch: pytest.MonkeyPatch, move: Callable[[], None]) -> None:
    """Have `move` called when a lookup has found its versions, and is about to map the first content."""
    real, waiting = MappedContent, [move]

    def mapped(*arguments: Any) -> MappedContent:
        if waiting:
            waiting.pop()()
        return real(*arguments)

    monkeypatch.setattr("app.store.stored_tensors.MappedContent", mapped)


def test_a_lookup_whose_version_is_removed_before_it_is_mapped_finds_where_the_alias_was_moved(
    items: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_alias(other, "live", "items@1")

    def move() -> None:
        put_alias(other, "live", "items@2")
        other.delete("items@1")

    moving_before_the_first_mapping(monkeypatch, move)
    assert read(items, "live").tolist() == [2, 2, 2]


@pytest.mark.parametrize("removed", [False, True])
def test_names_looked_up_together_are_of_one_state_whatever_moves_between_them(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """With `removed` the versions of the older state are not there any more: all names are looked up again."""
    for name in "ab":
        for number in (1, 2):
            put(other, name, np.full(3, number), keep=2)
        put_alias(other, f"{name}-live", f"{name}@1")

    def move() -> None:
        for name in "ab":
            put_alias(other, f"{name}-live", f"{name}@2")
            if removed:
                other.delete(f"{name}@1")

    moving_before_the_first_mapping(monkeypatch, move)
    found = store.get_all(["a-live", "b-live", "a-live", "a@2"])
    expected = 2 if removed else 1
    assert [one and one.data_version for one in found] == [expected, expected, expected, 2]
    assert [one and one.data_version for one in store.get_all(["a-live", "b-live"])] == [2, 2]
    assert store.get_all(["a", "c", "b"])[1:] == [None]


def test_many_moves_in_two_processes_follow_each_other(items: LocalStore, other: LocalStore) -> None:
    """Both move the same alias by its ETag, as two publishers do; each move is made once and seen at once."""
    put_alias(items, "live", "items@1")
    moves: list[str] = []

    def run(store: LocalStore) -> None:
        made = 0
        while made < 30:
            alias = store.alias("live")
            try:
                moved, _ = put_alias(store, "live", f"items@{alias.version % 3 + 1}", Conditions(match=(alias.etag,)))
            except GatherError as error:
                if error.code != "precondition_failed":
                    raise
                continue
            made += 1
            moves.append(moved.etag)

    threads = [Thread(target=run, args=(store,)) for store in (items, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(moves)) == 60
    assert items.alias("live") == other.alias("live")
    assert items.alias("live").version == 60 % 3 + 1


RELEASES = 20


def test_many_move_in_one_step_for_another_process_that_looks_them_up_meanwhile(
    store: LocalStore, other: LocalStore
) -> None:
    names = [f"t{number}" for number in range(26)]
    live = [f"{name}-live" for name in names]
    for name in names:
        for number in (1, 2):
            put(store, name, np.full(1, number), keep=2)

    def move(version: int) -> list[tuple[Alias, bool]]:
        return store.put_aliases(
            [AliasMove(alias, f"{name}@{version}") for alias, name in zip(live, names, strict=True)]
        )

    assert all(is_new for _, is_new in move(1))
    stop = Event()
    seen: list[set[object]] = []

    def look() -> None:
        while not stop.is_set():
            seen.append({one and one.data_version for one in other.get_all(live)})

    reader = Thread(target=look)
    reader.start()
    for release in range(RELEASES):
        moved = move(2 - release % 2)
        assert [alias.version for alias, _ in moved] == [2 - release % 2] * 26
        assert not any(is_new for _, is_new in moved)
        assert {one and one.data_version for one in other.get_all(live)} == {2 - release % 2}
    stop.set()
    reader.join()
    assert {1, 2} >= {version for found in seen for version in found}
    assert all(len(found) == 1 for found in seen)

"""Aliases: made, moved and removed in one step, seen by all workers, and what they keep from going."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.errors.hints import hint_of
from app.store import LocalStore, Quota
from app.store.files import disk_writes
from app.store.files.mapped_tensor import MappedContent
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from tests.store.helpers import files, opened, put, put_alias, read, uploaded


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

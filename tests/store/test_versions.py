"""Versions of a tensor: their numbers, which are kept, and what a reference to one reads, changes and removes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, Quota
from app.store.catalogue import catalogue_transaction
from tests.store.helpers import answered, files, opened, put, put_alias, read, scatter, strings


def numbers(store: LocalStore, name: str) -> list[int]:
    found = store.version_numbers(name)
    if found:
        assert store.metadata(name).versions == tuple(found)
        assert store.metadata(name).version == max(found)
    return found


def test_each_upload_makes_the_next_version_and_by_default_takes_the_last_ones_place(
    store: LocalStore, folder: Path
) -> None:
    for number in range(1, 4):
        metadata, created = put(store, "x", np.arange(number))
        assert (metadata.version, metadata.versions, created) == (number, (number,), number == 1)
        assert read(store, "x").tolist() == read(store, f"x@{number}").tolist() == list(range(number))
    assert store.get("x@2") is None
    assert len(files(folder)) == 1
    assert store.usage()[0] == store.version_count() == 1


def test_older_versions_are_kept_as_an_upload_says_or_the_setting(folder: Path) -> None:
    store = opened(folder, keep_versions=3)
    for number in range(1, 5):
        put(store, "x", np.arange(number))
    assert numbers(store, "x") == [2, 3, 4]
    put(store, "x", np.arange(5), keep=5)
    assert numbers(store, "x") == [2, 3, 4, 5]
    put(store, "x", np.arange(6))
    assert numbers(store, "x") == [4, 5, 6]
    put(store, "x", np.arange(7), keep=1)
    assert numbers(store, "x") == [7]
    assert len(files(folder)) == 1
    store.close()
    store = opened(folder)
    assert numbers(store, "x") == [7]
    store.close()


def test_the_current_version_by_its_name_and_its_number_is_one_content(store: LocalStore) -> None:
    put(store, "x", np.arange(3))
    by_name, by_number = store.get("x"), store.get("x@1")
    assert by_name is not None
    assert by_number is not None
    assert by_name.tensor.array is by_number.tensor.array  # mapped once
    scatter(store, "x", [[0]], np.array([5]))
    assert read(store, "x@1").tolist() == [5, 1, 2]


@pytest.mark.parametrize("restart", [False, True])
def test_numbers_are_never_given_again(folder: Path, restart: bool) -> None:
    store = opened(folder)

    def again(store: LocalStore) -> LocalStore:
        if not restart:
            return store
        store.close()
        return opened(folder)

    put(store, "x", np.arange(3))
    put(store, "x", np.arange(3), keep=2)
    store.delete("x@2")
    store = again(store)
    assert put(store, "x", np.arange(3), keep=2)[0].version == 3
    store.delete("x")
    store = again(store)
    metadata, created = put(store, "x", np.arange(3))
    assert (metadata.version, created) == (4, True)
    assert put(store, "y", np.arange(3))[0].version == 1
    store.close()


def test_all_versions_count_in_the_bytes_and_names_in_the_tensors(folder: Path) -> None:
    size = 4096 + 30_000 + 4
    store = opened(folder, Quota(total=3 * size + 1000, tensors=1))
    for _ in range(3):
        put(store, "x", np.zeros(30_000, np.uint8), keep=3)
    assert store.usage() == (1, 3 * size)
    with pytest.raises(GatherError, match="insufficient_storage"):
        put(store, "x", np.zeros(30_000, np.uint8), keep=4)
    assert numbers(store, "x") == [1, 2, 3]
    with pytest.raises(GatherError, match="insufficient_storage"):
        put(store, "y", np.zeros(1, np.uint8))
    put(store, "x", np.zeros(30_000, np.uint8), keep=3)  # what goes makes room
    put(store, "x", np.zeros(90_000, np.uint8), keep=1)
    assert numbers(store, "x") == [5]
    store.close()


def test_strings_that_a_scatter_changes_stay_the_version_that_they_were(folder: Path) -> None:
    store = opened(folder)
    put(store, "s", strings("a", "b"))
    put(store, "s", strings("c", "d"), keep=2)
    etag = scatter(store, "s@1", [[0]], strings("longer"), key="k")
    assert read(store, "s@1").tolist() == ["longer", "b"]
    assert read(store, "s").tolist() == ["c", "d"]
    assert numbers(store, "s") == [1, 2]
    assert len(files(folder)) == 2
    assert answered(store, "s@1", "k", "digest") == etag
    assert answered(store, "s", "k", "digest") is None
    store.close()


def test_a_process_that_is_far_behind_has_the_versions_right(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_transaction, "_KEPT_CHANGES", 8)
    put(store, "x", np.full(3, 1))
    put(store, "x", np.full(3, 2), keep=2)
    put_alias(store, "live", "x@1")
    held = other.get("x@1")
    assert other.alias_names() == ["live"]
    for number in range(40):
        put(store, "x", np.full(3, number + 3), keep=3)
    put_alias(store, "next", "x@41")
    store.delete_alias("live")
    for each in (store, other):
        assert numbers(each, "x") == [1, 40, 41, 42]
        assert each.alias_names() == ["next"]
        assert each.get("live") is None
        assert read(each, "next").tolist() == [41] * 3
        assert read(each, "x@1").tolist() == [1] * 3
    assert other.get("x@1") is held
    put(store, "x", np.arange(3))
    assert numbers(other, "x") == [41, 43]


def test_keys_given_with_a_name_are_found_after_the_next_upload(store: LocalStore, other: LocalStore) -> None:
    """`x` stands for another content then, in whose log they are not."""
    put(store, "x", np.arange(3))
    by_name = scatter(store, "x", [[0]], np.array([1]), "add", key="k")
    by_number = scatter(store, "x@1", [[0]], np.array([1]), "add", key="k", digest="other")
    assert by_name != by_number
    put(store, "x", np.arange(5), keep=2)
    for each in (store, other):
        assert answered(each, "x", "k", "digest") == by_name
        assert answered(each, "x@1", "k", "other") == by_number
        assert scatter(each, "x", [[0]], np.array([1]), "add", key="k") == by_name
    scattered = store.find_answer("x", "k", "digest")
    assert scattered is not None
    assert scattered.version == 1
    assert read(store, "x")[0] == 0
    assert read(store, "x@1")[0] == 2
    store.delete("x@2")
    assert scatter(store, "x", [[0]], np.array([1]), "add", key="k") == by_name
    put(store, "x", np.arange(7))
    store.delete("x")
    assert answered(store, "x", "k", "digest") == by_name
    assert answered(store, "x@1", "k", "other") == by_number


def test_keys_of_every_name_of_a_content_pass_through_checkpoints_and_restarts(folder: Path) -> None:
    store = opened(folder)
    put(store, "x", np.arange(3))
    put_alias(store, "live", "x@1")
    given = {
        name: scatter(store, name, [[0]], np.array([1]), "add", key="k", digest=name) for name in ("x", "x@1", "live")
    }
    assert len(set(given.values())) == 3

    def check(store: LocalStore) -> None:
        for name, etag in given.items():
            assert answered(store, name, "k", name) == etag
            with pytest.raises(GatherError, match="invalid_field"):
                answered(store, name, "k", "another request")
        assert read(store, "x")[0] == 3

    check(store)
    with store._replayed_logs.open(store._index.rows()[0]) as writable:
        store._checkpoints.checkpoint(writable)
    check(store)
    store.close()
    store = opened(folder)
    check(store)
    store.close()

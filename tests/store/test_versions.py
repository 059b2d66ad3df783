"""Versions of a tensor: their numbers, which are kept, and what a reference to one reads, changes and removes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.store import LocalStore, Quota
from app.store.catalogue import catalogue_transaction
from tests.store.helpers import answered, opened, put, put_alias, read, scatter


def numbers(store: LocalStore, name: str) -> list[int]:
    found = store.version_numbers(name)
    if found:
        assert store.metadata(name).versions == tuple(found)
        assert store.metadata(name).version == max(found)
    return found


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

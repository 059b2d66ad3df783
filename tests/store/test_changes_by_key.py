"""Upserts and removals by key, beside a model in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.errors import GatherError
from app.store import LocalStore, Quota, stored_tensors
from app.store.files import disk_writes
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from app.store.scatters.pending_scatter import ContentReplaced, KeyedChange
from app.store.tensor_metadata import read_first_page
from tests.conftest import slow_but_for
from tests.store.changed_by_key import (
    Key,
    Model,
    Table,
    as_keys,
    change_by_key,
    found_by_key,
    keyed_change,
    keys_tensor,
    remove,
    same,
    some_key,
    upsert,
)
from tests.store.helpers import change_of, files, opened, reopened, scatter, scatter_change, strings
from tests.store.keyed import put_keyed

TYPES = ("int64", "uint64", "string")
WIDTH = 3
every_type = pytest.mark.parametrize("dtype", slow_but_for(("int64", "string"), TYPES))


def filled(store: LocalStore, dtype: str, count: int = 20, capacity: int | None = None) -> Model:
    """A table `x` with so many keys."""
    keys: list[Key] = [some_key(dtype, number) for number in range(count)]
    rows = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
    put_keyed(store, "x", as_keys(dtype, keys), rows, capacity=capacity)
    return Model(Table((*keys,), rows))


def rows(*values: float) -> NDArray[np.float32]:
    return np.repeat(np.array(values, np.float32), WIDTH).reshape(-1, WIDTH)


def test_a_scatter_by_position_to_rows_that_went_is_judged_again(store: LocalStore) -> None:
    filled(store, "int64", 4)
    last, from_end = (
        change_of(store, "x", [[3]], rows(1)),
        replace(change_of(store, "x", [[3]], rows(1)), of_rows=4),
    )
    remove(store, "x", as_keys("int64", [some_key("int64", 0)]))
    for change in (last, from_end):
        with pytest.raises(ContentReplaced):
            scatter_change(store, "x", change)
    upsert(store, "x", as_keys("int64", [5]), rows(5))
    with pytest.raises(GatherError, match="index_out_of_bounds"):
        scatter(store, "x", [[4]], rows(1))
    scatter(store, "x", [[3]], rows(8))
    assert found_by_key(store, "x").rows[3].tolist() == [8] * WIDTH


def test_growth_that_the_quota_refuses_changes_nothing(folder: Path) -> None:
    store = opened(folder, Quota(total=30_000))
    model = filled(store, "string", 4)
    many: list[Key] = [some_key("string", number) for number in range(2000)]
    with pytest.raises(GatherError) as caught:
        upsert(store, "x", as_keys("string", many), rows(*range(2000)))
    assert caught.value.code == "insufficient_storage"
    assert same(found_by_key(store, "x"), model.table)
    assert upsert(store, "x", as_keys("string", many[:6]), rows(*range(6))) == model.upsert(many[:6], rows(*range(6)))
    assert same(found_by_key(store, "x"), model.table)
    assert list(check(folder)) == []
    assert len(files(folder)) == 4
    store.close()


@every_type
def test_a_download_is_of_one_version_of_rows_and_keys(store: LocalStore, other: LocalStore, dtype: str) -> None:
    model = filled(store, dtype, 600, capacity=800)
    before = model.table
    snapshot = other.snapshot(other.content("x"))
    keys: list[Key] = [some_key(dtype, number) for number in range(600)]
    remove(store, "x", as_keys(dtype, keys[::3]))
    upsert(store, "x", as_keys(dtype, [some_key(dtype, 7000 + number) for number in range(180)]), rows(*range(180)))
    upsert(store, "x", as_keys(dtype, [some_key(dtype, 9000 + number) for number in range(1000)]), rows(*range(1000)))
    assert snapshot.shape == (600, WIDTH)
    found = [key.decode() if isinstance(key, bytes) else key for key in snapshot.keys(0, 600).tolist()]
    read = np.frombuffer(snapshot.read(*snapshot.row_span(0, 600)), np.float32).reshape(-1, WIDTH)
    assert same(Table((*found,), read), before)
    snapshot.close()


@every_type
def test_a_backup_has_the_keys_of_a_table_that_has_grown(store: LocalStore, tmp_path: Path, dtype: str) -> None:
    model = filled(store, dtype, 4)
    for turn in range(3):
        keys: list[Key] = [some_key(dtype, number) for number in range(3, 40 * (turn + 1))]
        model.upsert(keys, rows(*range(len(keys))))
        upsert(store, "x", as_keys(dtype, keys), rows(*range(len(keys))))
        assert back_up(store.folder, tmp_path / "backup").copied == 1
        assert back_up(store.folder, tmp_path / "backup").copied == 0
        assert list(check(tmp_path / "backup")) == []
        restore(tmp_path / "backup", tmp_path / f"restored{turn}")
        restored = opened(tmp_path / f"restored{turn}")
        assert same(found_by_key(restored, "x"), model.table)
        upsert(restored, "x", as_keys(dtype, [some_key(dtype, 999)]), rows(5))
        assert list(check(restored.folder)) == []
        restored.close()


def test_strings_that_come_and_go_do_not_fill_the_disk(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_writes, "fsync", lambda _: None)
    model = filled(store, "string", 20)
    for turn in range(200):
        keys: list[Key] = [some_key("string", 100 + turn % 7), some_key("string", turn % 20)]
        upsert(store, "x", as_keys("string", keys), rows(1, 2))
        model.upsert(keys, rows(1, 2))
        remove(store, "x", as_keys("string", keys[:1]))
        model.remove(keys[:1])
    assert same(found_by_key(store, "x"), model.table)
    assert sum(path.stat().st_size for path in (folder / "tensors").iterdir()) < 30_000


def test_strings_that_a_start_writes_lower_in_a_full_heap_match_their_checksums(
    store: LocalStore, folder: Path
) -> None:
    def long_keys(name: str, count: int) -> list[Key]:
        return [f"{name}{number:03}".ljust(4000, "x") for number in range(count)]

    first, second, third = long_keys("a", 100), long_keys("b", 10), long_keys("c", 20)
    put_keyed(store, "x", as_keys("string", first), np.zeros((100, WIDTH), np.float32), capacity=140)
    ones = np.ones((20, WIDTH), np.float32)
    upsert(store, "x", as_keys("string", second), ones[:10])
    store = reopened(store, folder)  # their checksums are made
    remove(store, "x", as_keys("string", second))
    upsert(store, "x", as_keys("string", third), ones)
    store = reopened(store, folder)  # there is room for them once more where the second ones were
    assert list(check(folder)) == []
    assert found_by_key(store, "x").keys == (*first, *third)
    store.close()


def test_rows_of_strings_are_not_changed_by_key(store: LocalStore) -> None:
    put_keyed(store, "x", as_keys("int64", [1, 2]), strings("a", "b"))
    for change in (
        KeyedChange(store.content("x").description.id, keys_tensor(as_keys("int64", [1]))),
        keyed_change(store, "x", as_keys("int64", [1]), strings("c")),
    ):
        with pytest.raises(GatherError) as caught:
            change_by_key(store, "x", change)
        assert caught.value.code == "not_implemented"
    assert scatter(store, "x", [[0]], strings("longer"))


def before_the_next_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let `change` come once between the look into the catalogue and the read of a file."""

    def read(path: Path) -> Any:
        monkeypatch.setattr(stored_tensors, "read_first_page", read_first_page)
        change()
        return read_first_page(path)

    monkeypatch.setattr(stored_tensors, "read_first_page", read)


def test_a_table_that_grows_or_goes_while_it_is_described_is_not_damaged(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing(reference: str, count: int) -> None:
        updates = np.ones((count, WIDTH), np.float32)
        before_the_next_read(monkeypatch, lambda: upsert(store, reference, np.arange(count), updates))

    keys, rows = np.array([0]), np.zeros((1, WIDTH), np.float32)
    put_keyed(store, "x", keys, rows)
    growing("x", 100)
    ((listed,), _) = store.page(10, None)
    assert (listed.damaged, listed.shape) == (False, (100, WIDTH))
    growing("x", 1000)
    etag = store.etag_to_replace("x")
    assert etag == store.metadata("x").etag
    newest = put_keyed(store, "x", keys, rows, keep=2)
    growing("x@1", 5000)
    (older,) = store.older_versions(newest)
    assert (older.damaged, older.shape) == (False, (5000, WIDTH))
    before_the_next_read(monkeypatch, lambda: store.delete("x@1"))
    assert store.older_versions(newest) == []
    before_the_next_read(monkeypatch, lambda: store.delete("x"))
    assert store.page(10, None) == ([], None)

"""Upserts and removals by key, beside a model in Python."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.errors import GatherError
from app.store import LocalStore, Quota, stored_tensors
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.files import disk_writes
from app.store.maintenance.backup import back_up
from app.store.maintenance.check_store import check
from app.store.maintenance.restore import restore
from app.store.scatters.pending_scatter import ContentReplaced, KeyedChange, PendingScatter
from app.store.tensor_metadata import read_first_page
from app.tensors.operator_signature import Reduction
from tests.conftest import slow_but_for
from tests.store.changed_by_key import (
    REDUCTIONS,
    Key,
    Model,
    Table,
    as_keys,
    change_by_key,
    found_by_key,
    keyed_change,
    keys_tensor,
    random_keys,
    remove,
    same,
    some_key,
    table_of,
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


@every_type
@pytest.mark.parametrize("capacity", [None, 400])
def test_random_changes_by_two_workers_are_those_of_a_dictionary(
    store: LocalStore, other: LocalStore, folder: Path, dtype: str, capacity: int | None, soak_scale: int
) -> None:
    rng = random.Random(soak_scale)
    model = filled(store, dtype, capacity=capacity)
    for number in range(40 * soak_scale):
        worker, keys = rng.choice((store, other)), random_keys(dtype, rng, 300)
        if rng.random() < 0.5:
            values = np.array([[rng.randrange(-9, 9)] * WIDTH for _ in keys], np.float32).reshape(-1, WIDTH)
            how = rng.choice([*REDUCTIONS])
            assert upsert(worker, "x", as_keys(dtype, keys), values, how) == model.upsert(keys, values, how)
        else:
            assert remove(worker, "x", as_keys(dtype, keys)) == model.remove(keys)
        if number % 7 == 0:
            assert same(found_by_key(rng.choice((store, other)), "x"), model.table)
    for one in (store, other):
        assert same(found_by_key(one, "x"), model.table)
        assert one.metadata("x").shape == (len(model.table.keys), WIDTH)
    assert list(check(folder)) == []
    other.close()
    again = reopened(store, folder)
    assert same(found_by_key(again, "x"), model.table)
    assert list(check(folder)) == []
    again.close()


def rows(*values: float) -> NDArray[np.float32]:
    return np.repeat(np.array(values, np.float32), WIDTH).reshape(-1, WIDTH)


@every_type
def test_changes_that_wait_together_are_as_if_one_after_the_other(store: LocalStore, dtype: str) -> None:
    model = filled(store, dtype, 4)
    a, b, c = (some_key(dtype, number) for number in (2, 50, 51))
    batch: list[tuple[str, list[Key], Any, Reduction]] = [
        ("upsert", [b, a, b], rows(1, 2, 3), "add"),
        ("upsert", [b, c], rows(10, 20), "add"),
        ("scatter", [], rows(7), "none"),
        ("upsert", [c, a], rows(5, 6), "mul"),
        ("remove", [a, b, a], None, "none"),
        ("upsert", [b], rows(9), "max"),
        ("remove", [b, some_key(dtype, 99)], None, "none"),
    ]  # fmt: skip
    waiting = [
        PendingScatter(change_of(store, "x", [[1]], values))
        if kind == "scatter"
        else PendingScatter(keyed_change(store, "x", as_keys(dtype, keys), values, how))
        for kind, keys, values, how in batch
    ]
    afterwards = store.execute_scatters("x", lambda most: waiting[:most])
    assert afterwards is None
    for (kind, keys, values, how), one in zip(batch, waiting, strict=True):
        counts = one.result().counts
        if kind == "scatter":
            model.table.rows[1] = 7
            assert counts is None
        else:
            assert counts == (model.remove(keys) if values is None else model.upsert(keys, values, how))
    assert same(found_by_key(store, "x"), model.table)


@every_type
def test_a_change_that_comes_again_gets_its_first_answer(store: LocalStore, folder: Path, dtype: str) -> None:
    filled(store, dtype, 4)
    new, old = as_keys(dtype, [some_key(dtype, 9)]), as_keys(dtype, [some_key(dtype, 0)])
    first = change_by_key(store, "x", keyed_change(store, "x", new, rows(1), key="a"))
    second = change_by_key(store, "x", keyed_change(store, "x", old, key="b"))
    assert (first.counts, second.counts) == (RowCounts(5, inserted=1), RowCounts(4, removed=1))
    for turn in range(2):
        for key, keys, values, answer in (("a", new, rows(1), first), ("b", old, None, second)):
            again = change_by_key(store, "x", keyed_change(store, "x", keys, values, key=key))
            assert (again.etag, again.counts, again.repeated) == (answer.etag, answer.counts, True), turn
        store = reopened(store, folder)
    store.close()


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


@pytest.mark.parametrize("capacity", [3, 0])
def test_a_capacity_below_the_rows_is_refused(store: LocalStore, capacity: int) -> None:
    with pytest.raises(GatherError) as caught:
        filled(store, "int64", 4, capacity)
    assert (caught.value.code, caught.value.places[0].pointer) == ("invalid_field", "/query/capacity")


@every_type
def test_what_an_fsync_has_lost_is_written_to_new_files(
    store: LocalStore, folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = filled(store, dtype, 4, capacity=1000)
    store._checkpoints.checkpoint_bytes = 100
    real, failed = disk_writes.fsync, list[int]()
    before = {path for path in files(folder) if path.startswith("tensors/")}

    def fails_once(fd: int) -> None:
        if not failed and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".keys":
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(disk_writes, "fsync", fails_once)
        for turn in range(6):
            keys: list[Key] = [some_key(dtype, number) for number in range(turn, turn + 5)]
            assert upsert(store, "x", as_keys(dtype, keys), rows(*range(5))) == model.upsert(keys, rows(*range(5)))
            assert remove(store, "x", as_keys(dtype, keys[:2])) == model.remove(keys[:2])
            assert same(found_by_key(store, "x"), model.table)
    assert failed
    assert not before & files(folder)
    assert list(check(folder)) == []
    again = reopened(store, folder)
    assert same(found_by_key(again, "x"), model.table)
    again.close()


@every_type
def test_a_reader_beside_changes_sees_one_state(store: LocalStore, other: LocalStore, dtype: str) -> None:
    """Each row has the number of its key: rows, keys and index that did not belong together would show."""
    numbers = {some_key(dtype, number): number for number in range(60)}
    put_keyed(store, "x", as_keys(dtype, [some_key(dtype, 0)]), rows(0))

    def change(seed: int) -> None:
        rng, worker = random.Random(seed), (store, other)[seed % 2]
        for _ in range(20):
            keys = random_keys(dtype, rng, 60)
            if rng.random() < 0.6:
                upsert(worker, "x", as_keys(dtype, keys), rows(*(numbers[key] for key in keys)))
            else:
                remove(worker, "x", as_keys(dtype, keys))

    with ThreadPoolExecutor(3) as threads:
        working = [threads.submit(change, seed) for seed in range(3)]
        consistent = 0
        while not all(one.done() for one in working) or not consistent:
            resident = other.get("x")
            assert resident is not None
            table = table_of(resident)
            if resident.is_consistent:
                consistent += 1
                assert table.rows[:, 0].tolist() == [numbers[key] for key in table.keys]
        for one in working:
            one.result()
    assert same(found_by_key(store, "x"), found_by_key(other, "x"))


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

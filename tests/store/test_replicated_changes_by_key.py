"""Upserts and removals of replicated contents: each copy is what a dictionary is, grows by itself, and starts again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore
from app.store.maintenance.check_store import check
from app.store.scatters.key_changes import TableFull
from app.store.scatters.replicated_contents import Batch
from app.store.scatters.replicated_copy import ReplicatedCopy
from tests.conftest import slow_but_for
from tests.store.changed_by_key import (
    REDUCTIONS,
    Key,
    Model,
    Table,
    as_keys,
    found_by_key,
    random_keys,
    remove,
    same,
    some_key,
    upsert,
)
from tests.store.helpers import opened
from tests.store.keyed import put_keyed
from tests.store.replicated import Alone

NAME = "c.0-300"
TYPES = ("int64", "uint64", "string")
WIDTH = 3


class Leading(Alone):
    """A primary that ships each batch to replicas."""

    def __init__(self, store: LocalStore, replicas: list[LocalStore]) -> None:
        super().__init__(store)
        self.replicas = replicas

    def replicate(self, tensor: str, batch: Batch) -> None:
        for replica in self.replicas:
            follow(replica, batch.frame, batch.after)


def follow(replica: LocalStore, frames: bytes, committed: int) -> None:
    """Log records on a replica, and apply what is committed."""

    def take(content: ReplicatedCopy) -> None:
        content.append_frames(frames)
        content.commit_to(committed)

    replica.replicated.change(NAME, take)


def commit(store: LocalStore) -> None:
    with store.replicated.open(NAME) as content:
        content.commit_to(content.state().last)
        content.settle()


def filled(store: LocalStore, dtype: str, count: int = 5, capacity: int | None = None) -> Model:
    keys: list[Key] = [some_key(dtype, number) for number in range(count)]
    rows = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
    put_keyed(store, NAME, as_keys(dtype, keys), rows, capacity=capacity)
    with store.replicated.open(NAME) as content:
        content.set_epoch(1)
    return Model(Table((*keys,), rows))


def change(rng: random.Random, store: LocalStore, dtype: str, model: Model, key: str | None = None) -> None:
    keys = random_keys(dtype, rng, 200)
    if rng.random() < 0.6:
        values = np.array([[rng.randrange(-9, 9)] * WIDTH for _ in keys], np.float32).reshape(-1, WIDTH)
        how = rng.choice([*REDUCTIONS])
        assert upsert(store, NAME, as_keys(dtype, keys), values, how, key=key) == model.upsert(keys, values, how)
    else:
        assert remove(store, NAME, as_keys(dtype, keys), key=key) == model.remove(keys)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[LocalStore]]:
    found = [opened(tmp_path / str(number)) for number in range(3)]
    yield found
    for one in found:
        one.close()


@pytest.mark.parametrize("dtype", slow_but_for(("int64", "string"), TYPES))
def test_copies_that_begin_with_other_room_are_those_of_a_dictionary_after_each_start(
    stores: list[LocalStore], tmp_path: Path, dtype: str, soak_scale: int
) -> None:
    rng = random.Random(soak_scale)
    model = filled(stores[0], dtype)
    for number, capacity in ((1, 150), (2, None)):
        filled(stores[number], dtype, capacity=capacity)
    for one in stores:
        one._checkpoints.checkpoint_bytes = 4000
    leading = stores[0].replicated.replication = Leading(stores[0], stores[1:])
    for number in range(40 * soak_scale):
        change(rng, stores[0], dtype, model, f"k{number}")
        if number % 20 == 19:
            which = rng.randrange(3)
            stores[which].close()
            stores[which] = opened(tmp_path / str(which))
            leading = stores[0].replicated.replication = Leading(stores[0], stores[1:])
        if number % 7 == 0:
            for replica in leading.replicas:
                commit(replica)
            assert all(same(found_by_key(one, NAME), model.table) for one in stores)
    for replica in leading.replicas:
        commit(replica)
    known = {(one.key, one.counts) for one in stores[0].replicated.keys(NAME)}
    assert len(known) == 40 * soak_scale
    for number, one in enumerate(stores):
        assert same(found_by_key(one, NAME), model.table)
        assert {(each.key, each.counts) for each in one.replicated.keys(NAME)} == known
        assert list(check(tmp_path / str(number))) == []


def rows_file(folder: Path) -> Path:
    """The file with the rows and the head of the only content."""
    (found,) = (path for path in (folder / "tensors").iterdir() if "." not in path.name)
    return found


def test_a_full_heap_of_a_machine_that_lost_power_fits_although_the_tail_had_reached_its_keys(tmp_path: Path) -> None:
    """The key file is newer than the head of the rows: a row that the tail touches has its key at the heap's top."""
    folder = tmp_path / "one"
    store = opened(folder)
    keys: list[Key] = [f"{number:03}".ljust(4000, "x") for number in range(120)]
    rows = np.arange(120 * WIDTH, dtype=np.float32).reshape(120, WIDTH)
    put_keyed(store, NAME, as_keys("string", keys[:100]), rows[:100], capacity=140)
    with store.replicated.open(NAME) as content:
        content.set_epoch(1)
    model = Model(Table((*keys[:100],), rows[:100]))
    store.replicated.replication = Alone(store)
    assert upsert(store, NAME, as_keys("string", keys[100:]), rows[100:]) == model.upsert(keys[100:], rows[100:])
    before = rows_file(folder).read_bytes()
    assert remove(store, NAME, as_keys("string", keys[:1])) == model.remove(keys[:1])
    store.close()
    rows_file(folder).write_bytes(before)
    store = opened(folder)
    with store.replicated.open(NAME) as content:
        state = content.state()
        assert (state.applied, state.tail, state.settled) == (1, (1,), False)
    commit(store)
    assert same(found_by_key(store, NAME), model.table)
    store.close()
    assert list(check(folder)) == []


def test_records_for_which_a_table_has_no_room_are_not_logged(stores: list[LocalStore]) -> None:
    filled(stores[0], "int64", capacity=100)
    filled(stores[1], "int64")
    batches: list[Batch] = []

    class Noting(Alone):
        def replicate(self, tensor: str, batch: Batch) -> None:
            batches.append(batch)

    stores[0].replicated.replication = Noting(stores[0])
    upsert(stores[0], NAME, as_keys("int64", [1, 2, 3]), np.ones((3, WIDTH), np.float32))
    with stores[1].replicated.open(NAME) as content:
        with pytest.raises(TableFull):
            content.append_frames(batches[0].frame)
        assert content.state().tail == ()

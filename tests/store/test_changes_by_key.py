"""Upserts and removals by key, beside a model in Python."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore
from app.store.maintenance.check_store import check
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
from tests.store.helpers import reopened
from tests.store.keyed import put_keyed

TYPES = ("int64", "uint64", "string")
WIDTH = 3


def filled(store: LocalStore, dtype: str, count: int = 20, capacity: int | None = None) -> Model:
    """A table `x` with so many keys."""
    keys: list[Key] = [some_key(dtype, number) for number in range(count)]
    rows = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
    put_keyed(store, "x", as_keys(dtype, keys), rows, capacity=capacity)
    return Model(Table((*keys,), rows))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("capacity", [None, 400])
def test_random_changes_by_two_workers_are_those_of_a_dictionary(
    store: LocalStore, other: LocalStore, folder: Path, dtype: str, capacity: int | None, soak_scale: int
) -> None:
    rng = random.Random(soak_scale)
    model = filled(store, dtype, capacity=capacity)
    for number in range(60 * soak_scale):
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

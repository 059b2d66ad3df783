"""What a shard does with records of a primary, on its own disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cluster.replication.replica import Append, Appended
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.read_gate import GatedStore
from app.store import LocalStore
from app.store.scatters.replicated_contents import Batch
from app.tensors.shape_limits import Limits
from tests.store.changed_by_key import Model, Table, as_keys, found_by_key, remove, same, upsert
from tests.store.helpers import opened
from tests.store.keyed import put_keyed
from tests.store.replicated import Alone

NAME = "c.0-300"
COUNT = 5
WIDTH = 3


class Shipped(Alone):
    """A primary that keeps its batches."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self.batches: list[Batch] = []

    def replicate(self, tensor: str, batch: Batch) -> None:
        self.batches.append(batch)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[LocalStore]:
    store = opened(tmp_path / "primary")
    yield store
    store.close()


def filled(store: LocalStore) -> Model:
    """A table without room for more rows."""
    rows = np.arange(COUNT * WIDTH, dtype=np.float32).reshape(COUNT, WIDTH)
    put_keyed(store, NAME, np.arange(COUNT), rows)
    with store.replicated.open(NAME) as content:
        content.set_epoch(1)
    return Model(Table((*range(COUNT),), rows))


def opened_shard(folder: Path) -> GatedStore:
    store = GatedStore(folder, Limits())
    store.open()
    return store


def shipped(batch: Batch, commit: int) -> tuple[Append, bytes]:
    """A message with the record of a batch."""
    return Append(1, batch.after, batch.after_epoch, commit, batch.last, (batch.epoch,)), batch.frame


def test_a_full_table_grows_after_a_loss_of_power_with_a_removal_in_its_tail(
    primary: LocalStore, tmp_path: Path
) -> None:
    folder = tmp_path / "replica"
    model = filled(primary)
    made = primary.replicated.replication = Shipped(primary)
    assert remove(primary, NAME, as_keys("int64", [0])) == model.remove([0])
    more = np.ones((3, WIDTH), np.float32)
    assert upsert(primary, NAME, as_keys("int64", [7, 8, 9]), more) == model.upsert([7, 8, 9], more)

    store = opened_shard(folder)
    filled(store)
    (rows,) = (path for path in (folder / "tensors").iterdir() if "." not in path.name)
    before = rows.read_bytes()
    RangeLog(store).append(NAME, *shipped(made.batches[0], 1))
    store.close()
    rows.write_bytes(before)  # the power fails: the key file is newer than the rows and their head
    store = opened_shard(folder)
    log = RangeLog(store)
    answer = log.append(NAME, *shipped(made.batches[1], 1))
    assert answer == Appended(1, 1, 2)
    assert log.commit(NAME, 1, 2) is not None
    assert same(found_by_key(store, NAME), model.table)
    store.close()

"""What a shard does with records of a primary, on its own disk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

import numpy as np
import pytest

from app.cluster.replication.replica import Append, Appended
from app.cluster.shard.range_log import GROWTHS, RangeLog
from app.cluster.shard.read_gate import GatedStore
from app.errors import GatherError
from app.store import LocalStore
from app.store.catalogue.catalogue_rows import Row
from app.store.processes.store_locks import stripe
from app.store.scatters.key_changes import TableFull
from app.store.scatters.replicated_contents import Batch
from app.store.scatters.table_growth import TableGrowth
from app.store.scatters.writable_tensor import WritableTensor
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


def filled(store: LocalStore, name: str = NAME) -> Model:
    """A table without room for more rows."""
    rows = np.arange(COUNT * WIDTH, dtype=np.float32).reshape(COUNT, WIDTH)
    put_keyed(store, name, np.arange(COUNT), rows)
    with store.replicated.open(name) as content:
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


def test_ranges_that_grow_leave_threads_to_others(
    primary: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that all of them get needs a larger table."""
    filled(primary)
    made = primary.replicated.replication = Shipped(primary)
    upsert(primary, NAME, as_keys("int64", [7]), np.ones((1, WIDTH), np.float32))
    message = shipped(made.batches[0], 0)
    names = [*{stripe(name): name for name in (f"c.{number}-300" for number in range(100))}.values()][: GROWTHS + 2]
    store = opened_shard(tmp_path / "replica")
    for name in names:
        filled(store, name)
    log = RangeLog(store)
    growing, go_on, grow = Semaphore(0), Event(), TableGrowth.grow

    def grow_slowly(self: TableGrowth, writable: WritableTensor, full: TableFull) -> Row:
        growing.release()
        assert go_on.wait(60)
        return grow(self, writable, full)

    monkeypatch.setattr(TableGrowth, "grow", grow_slowly)
    with ThreadPoolExecutor(GROWTHS) as threads:
        answers = [threads.submit(log.append, name, *message) for name in names[:GROWTHS]]
        for _ in answers:
            assert growing.acquire(timeout=60)
        for name in names[GROWTHS:]:
            with pytest.raises(GatherError) as raised:
                log.append(name, *message)
            assert raised.value.code == "overloaded"
        go_on.set()
        assert [one.result() for one in answers] == [Appended(1, 0, 1)] * GROWTHS
    for name in names[GROWTHS:]:
        assert log.append(name, *message) == Appended(1, 0, 1)
    store.close()

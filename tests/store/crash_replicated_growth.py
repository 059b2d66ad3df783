"""The course of `tests.store.crash_replicated` of a table that is changed by key, as a replica and as a primary.

A primary of its own makes the records before, with more room. The table has room for its first keys alone: it grows for
records while its log has a tail, and while it has none. Its string keys come and go, so that their heap is full, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.store import LocalStore
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.scatters.log_frames import decode, frames_in
from app.store.scatters.replicated_contents import Batch
from tests.store.changed_by_key import Key, Model, Table, as_keys, remove, some_key, table_of, upsert
from tests.store.crash import MEMORY, opened
from tests.store.crash_replicated_case import Contents, Course
from tests.store.keyed import put_keyed
from tests.store.replicated import TENSOR, Alone, digest

WIDTH: Final = 3
COUNT: Final = 12


@dataclass(frozen=True)
class KeyedMade:
    """A record of a model: it has an upsert or a removal, after which the table is `table`."""

    sequence: int
    epoch: int
    key: str
    counts: RowCounts
    table: Table
    frame: bytes


class Making(Alone):
    """A primary whose batches are kept; while it `fails`, they stay in the tail."""

    fails = False
    batch: Batch

    def replicate(self, tensor: str, batch: Batch) -> None:
        self.batch = batch
        if self.fails:
            raise GatherError("shard_unavailable", "no replica answers", retry_after=1)


@dataclass(frozen=True)
class Asked:
    """An upsert of rows of one value, or a removal if there is none."""

    keys: tuple[Key, ...]
    value: float | None

    def make(self, store: LocalStore, key: str) -> RowCounts:
        """Make it in a store."""
        keys = as_keys("string", self.keys)
        if self.value is None:
            return remove(store, TENSOR, keys, key=key, digest=digest(key))
        return upsert(store, TENSOR, keys, self.rows(self.value), key=key, digest=digest(key))

    def rows(self, value: float) -> NDArray[np.float32]:
        """The updates."""
        return np.full((len(self.keys), WIDTH), value, np.float32)

    def after(self, table: Table) -> tuple[Table, RowCounts]:
        """The table after it."""
        model = Model(table)
        keys = [*self.keys]
        counts = model.remove(keys) if self.value is None else model.upsert(keys, self.rows(self.value))
        return model.table, counts


class KeyedCourse(Course):
    """Changes by key, of which `primary` makes the records."""

    def __init__(self, primary: LocalStore) -> None:
        super().__init__()
        self.primary = primary
        self.making = primary.replicated.replication = Making(primary)

    def make(self, asked: Asked, *, fails: bool = False) -> KeyedMade:
        """The next record; the primary takes it back if it `fails`."""
        self.keys += 1
        key, model = f"k{self.keys}", self.now
        sequence = len(model.records) + 1
        table, counts = asked.after(table_after(model.records))
        self.making.fails = fails
        try:
            assert asked.make(self.primary, key) == counts
        except GatherError:
            assert fails
            with self.primary.replicated.open(TENSOR) as content:
                content.drop_tail(sequence - 1)
        batch = self.making.batch
        assert (batch.last, batch.epoch) == (sequence, model.epoch)
        return KeyedMade(sequence, model.epoch, key, counts, table, batch.frame)

    def epoch(self, epoch: int) -> None:
        super().epoch(epoch)
        self.changes[-1].work(self.primary)

    def append(self, asked: Asked, *, fails: bool = False) -> None:
        """A record from the primary, for which the table may grow."""
        made = self.make(asked, fails=fails)

        def work(store: LocalStore) -> None:
            store.replicated.change(TENSOR, lambda content: content.append_frames(made.frame))

        self.add("append", work, replace(self.now, records=(*self.now.records, made)))

    def change(self, asked: Asked) -> None:
        """A change that this store makes, as a primary or by itself."""
        made = self.make(asked)

        def work(store: LocalStore) -> None:
            store.replicated.replication = Alone(store)
            asked.make(store, made.key)

        records = (*self.now.records, made)
        self.add("change", work, replace(self.now, records=records, applied=len(records)))


def some_keys(start: int, stop: int) -> tuple[Key, ...]:
    return tuple(some_key("string", number) for number in range(start, stop))


def added(start: int, stop: int) -> Asked:
    return Asked(some_keys(start, stop), float(start + 1))


def removed(start: int, stop: int) -> Asked:
    return Asked(some_keys(start, stop), None)


FIRST: Final = Table(some_keys(0, COUNT), np.arange(COUNT * WIDTH, dtype=np.float32).reshape(COUNT, WIDTH))


def put_first(store: LocalStore, capacity: int | None = None) -> None:
    put_keyed(store, TENSOR, as_keys("string", FIRST.keys), FIRST.rows, capacity=capacity)


def table_after(records: Sequence[KeyedMade | object]) -> Table:
    last = records[-1] if records else None
    return last.table if isinstance(last, KeyedMade) else FIRST


@cache
def course() -> Course:
    """Growth without a tail and with one, before and after removals, of rows and of the heap alone."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as room:
        primary = opened(Path(room) / "primary")
        put_first(primary, 500)
        made = KeyedCourse(primary)
        made.epoch(1)
        made.append(removed(0, 2))
        made.append(added(20, 26))  # grows with a removal in its tail
        made.commit(2)
        made.append(removed(3, 5))
        made.append(added(30, 32), fails=True)
        made.epoch(2)
        made.drop(3)
        made.append(added(40, 70))  # grows, and drops none of its epochs
        made.commit(3)
        made.commit(4)
        made.change(removed(40, 69))
        made.change(added(100, 140))  # grows as a primary
        for turn in range(4):  # the heap fills with keys that go
            made.append(removed(100 + 10 * turn, 110 + 10 * turn))
            made.append(added(200 + 10 * turn, 210 + 10 * turn))
            made.commit(len(made.now.records) - 1)
        made.commit(len(made.now.records))
        made.change(added(300, 400))
        primary.close()
    return made


def read(frames: bytes) -> list[tuple[object, ...]]:
    """What frames say, as `told` has it."""
    return [
        (one.entry.sequence, one.entry.epoch, one.entry.key, one.entry.size, one.entry.counts)
        for frame in frames_in(frames)
        for one in decode(frame)
    ]


def told(records: Sequence[KeyedMade]) -> list[tuple[object, ...]]:
    return [(one.sequence, one.epoch, one.key, one.counts.rows, [*one.counts]) for one in records]


KEYED_CONTENTS = Contents(
    put_first,
    course,
    read,
    told,
    lambda store: table_of(store.content(TENSOR).resident()).tobytes(),
    lambda records: table_after(records).tobytes(),
)

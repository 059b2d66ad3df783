"""Tables that are changed by key, and a model of them in Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.catalogue.conditions import ALWAYS, Conditions
from app.keys.key_column import KeyColumn
from app.keys.key_index import find
from app.store import LocalStore, Resident
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.scatters.pending_scatter import KeyedChange, ScatterChange, Scattered
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import Reduction
from app.tensors.tensor import Tensor
from tests.store.helpers import made
from tests.store.keyed import Keys
from tests.strings import packed

Key = int | str


def keys_tensor(keys: Keys) -> Tensor:
    if not isinstance(keys, np.ndarray):
        return packed([*keys])
    return Tensor(DTYPES[keys.dtype.name], keys.shape, keys)


def keyed_change(
    store: LocalStore,
    name: str,
    keys: Keys,
    updates: NDArray[Any] | None = None,
    reduction: Reduction = "none",
    key: str | None = None,
    digest: str = "digest",
) -> KeyedChange:
    """An upsert, or a removal without updates, as the store takes it."""
    about = store.content(name).description
    width = 0 if updates is None else int(np.prod(about.shape[1:]))
    tensor = None if updates is None else made(updates)
    return KeyedChange(about.id, keys_tensor(keys), tensor, width, reduction, key, digest)


def change_by_key(
    store: LocalStore, name: str, change: ScatterChange | KeyedChange, conditions: Conditions = ALWAYS
) -> Scattered:
    """Carry out a change, as its caller's turn comes."""
    turn = Event()
    queued = store.queue_scatter(name, change, conditions, turn.set)
    if not queued.is_leader:
        turn.wait()
    return store.complete_scatter(name, queued)


def upsert(store: LocalStore, name: str, keys: Keys, updates: NDArray[Any], *options: Any, **more: Any) -> RowCounts:
    counts = change_by_key(store, name, keyed_change(store, name, keys, updates, *options, **more)).counts
    assert counts is not None
    return counts


def remove(store: LocalStore, name: str, keys: Keys, **options: Any) -> RowCounts:
    counts = change_by_key(store, name, keyed_change(store, name, keys, **options)).counts
    assert counts is not None
    return counts


def table_of(resident: Resident) -> Table:
    """All rows with their keys; each key must lead to its row. Of no one state unless the resident is consistent."""
    keys = resident.keys
    assert keys is not None
    rows = resident.tensor.array.reshape(resident.tensor.shape).copy()
    column = keys.column  # type: ignore[attr-defined]
    found: list[Key] = [key.decode("utf-8", "replace") if isinstance(key, bytes) else key for key in column.tolist()]
    texts = keys.dtype == "string"
    wanted = packed([str(key) for key in found]) if texts else KeyColumn.integers(np.array(found, keys.dtype))
    search = keys.search(wanted)
    find([search], [-1])
    if resident.is_consistent:
        assert search.rows.tolist() == [*range(len(found))]
        assert keys.count == len(rows) == len(found)
    return Table((*found,), rows)


def found_by_key(store: LocalStore, name: str) -> Table:
    """All rows with their keys as the store has them."""
    resident = store.get(name)
    assert resident is not None
    table = table_of(resident)
    assert resident.is_consistent
    return table


def same(one: Table, other: Table) -> bool:
    return one.tobytes() == other.tobytes()


REDUCTIONS: dict[Reduction, Any] = {
    "none": lambda old, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows of float32 and their keys, in the order that they have."""

    keys: tuple[Key, ...]
    rows: NDArray[np.float32]
    dtype: str = "by key"

    def tobytes(self) -> bytes:
        return repr(self.keys).encode() + self.rows.tobytes()

    def upserted(
        self, keys: Sequence[Key], updates: NDArray[np.float32], reduction: Reduction
    ) -> tuple[Table, RowCounts]:
        places = {key: place for place, key in enumerate(self.keys)}
        rows = [*self.rows]
        for key, update in zip(keys, updates, strict=True):
            if key not in places:
                places[key] = len(rows)
                rows.append(np.zeros(self.rows.shape[1], np.float32))
            rows[places[key]] = REDUCTIONS[reduction](rows[places[key]], update)
        count = len(rows)
        made = np.array(rows, np.float32).reshape(count, self.rows.shape[1])
        return Table((*places,), made), RowCounts(count, inserted=count - len(self.keys))

    def without(self, keys: Sequence[Key]) -> tuple[Table, RowCounts]:
        """The table after a removal: the last rows are in the gaps."""
        places = {key: place for place, key in enumerate(self.keys)}
        gone = {places[key] for key in keys if key in places}
        count = len(self.keys) - len(gone)
        order = [*range(count)]
        last = [row for row in range(count, len(self.keys)) if row not in gone]
        for gap, source in zip(sorted(row for row in gone if row < count), last, strict=True):
            order[gap] = source
        rest = Table(tuple(self.keys[row] for row in order), self.rows[order])
        return rest, RowCounts(count, removed=len(gone), missing=len({*keys} - places.keys()))


@dataclass
class Model:
    """A table of float32 rows that changes."""

    table: Table

    def upsert(self, keys: list[Key], updates: NDArray[np.float32], reduction: Reduction = "none") -> RowCounts:
        self.table, counts = self.table.upserted(keys, updates, reduction)
        return counts

    def remove(self, keys: list[Key]) -> RowCounts:
        self.table, counts = self.table.without(keys)
        return counts


def some_key(dtype: str, number: int) -> Key:
    """A key for a number; strings of all lengths, some of which begin alike."""
    if dtype == "string":
        return ("é" * (number % 5)) + f"{number}" + "x" * (number % 37)
    return number * 0x9E3779B97F4A7C15 % 2**64 if dtype == "uint64" else number * 7919 - 1000


def as_keys(dtype: str, keys: Sequence[Key]) -> Keys:
    return [str(key) for key in keys] if dtype == "string" else np.array(keys, dtype)


def random_keys(dtype: str, rng: random.Random, most: int, count: int | None = None) -> list[Key]:
    many = rng.choice((0, 1, 1, 2, 5, 40)) if count is None else count
    return [some_key(dtype, rng.randrange(most)) for _ in range(many)]

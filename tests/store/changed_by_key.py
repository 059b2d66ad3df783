"""Tables that are changed by key, and a model of them in Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.catalogue.conditions import ALWAYS, Conditions
from app.store import LocalStore
from app.store.row_counts import RowCounts
from app.store.scatters.pending_scatter import KeyedChange, PendingScatter, Scattered
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


def change_by_key(store: LocalStore, name: str, change: KeyedChange, conditions: Conditions = ALWAYS) -> Scattered:
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


def pending(store: LocalStore, name: str, keys: Keys, *options: Any, **more: Any) -> PendingScatter:
    return PendingScatter(keyed_change(store, name, keys, *options, **more))


def found_by_key(store: LocalStore, name: str) -> dict[Key, list[float]]:
    """All keys with their rows; each key must lead to its row."""
    resident = store.get(name)
    assert resident is not None
    assert resident.keys is not None
    rows = resident.tensor.array.reshape(resident.tensor.shape[0], -1).tolist()
    column = resident.keys.column  # type: ignore[attr-defined]
    keys = [key.decode() if isinstance(key, bytes) else key for key in column.tolist()]
    wanted = packed(keys) if resident.keys.dtype == "string" else np.array(keys, resident.keys.dtype)
    places = np.empty(len(keys), np.int64)
    resident.keys.find(wanted, places)
    assert places.tolist() == list(range(len(keys)))
    assert resident.is_consistent
    assert resident.keys.count == len(rows) == len(keys)
    return dict(zip(keys, rows, strict=True))


@dataclass
class Model:
    """A table of float32 rows by key."""

    width: int
    rows: dict[Key, NDArray[np.float32]] = field(default_factory=dict)

    def upsert(self, keys: list[Key], updates: NDArray[np.float32], reduction: Reduction = "none") -> RowCounts:
        known = len(self.rows)
        functions: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
        for key, update in zip(keys, updates, strict=True):
            old = self.rows.get(key, np.zeros(self.width, np.float32))
            self.rows[key] = update.copy() if reduction == "none" else functions[reduction](old, update)
        return RowCounts(len(self.rows), inserted=len(self.rows) - known)

    def remove(self, keys: list[Key]) -> RowCounts:
        known = {key for key in keys if key in self.rows}
        for key in known:
            del self.rows[key]
        return RowCounts(len(self.rows), removed=len(known), missing=len({*keys} - known))

    def found(self) -> dict[Key, list[float]]:
        return {key: row.tolist() for key, row in self.rows.items()}


def some_key(dtype: str, number: int) -> Key:
    """A key for a number; strings of all lengths, some of which begin alike."""
    if dtype == "string":
        return ("é" * (number % 5)) + f"{number}" + "x" * (number % 37)
    return number * 0x9E3779B97F4A7C15 % 2**64 if dtype == "uint64" else number * 7919 - 1000


def as_keys(dtype: str, keys: list[Key]) -> Keys:
    return [str(key) for key in keys] if dtype == "string" else np.array(keys, dtype)


def random_keys(dtype: str, rng: random.Random, most: int, count: int | None = None) -> list[Key]:
    many = rng.choice((0, 1, 1, 2, 5, 40)) if count is None else count
    return [some_key(dtype, rng.randrange(most)) for _ in range(many)]

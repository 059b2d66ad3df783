"""A table whose keys and rows change in place while requests read it, as upserts and removes of another process do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import reference
from app.keys.key_column import KeyColumn
from app.keys.probe import Search
from app.store import Resident, Store
from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from tests.keyed import Column

WIDTH = 2
CAPACITY = 16


class Changing:
    """A table in one place of memory. In each of its states it has other keys, and of each key other rows.

    `script` says how often it changes at each moment that a change may come: whenever keys were found, and whenever a
    kernel has run. While writers are kept out it stays, and what was to come then comes at the next moment.
    """

    def __init__(self, states: Sequence[Sequence[Any]], script: Sequence[int], dtype: str = "int64") -> None:
        self.states, self.script, self.dtype = states, [*script], dtype
        self.memory = np.zeros((CAPACITY, WIDTH), np.float32)
        self.words = [0]
        self.kept_out = False
        self.holds = 0
        self.show()

    @property
    def number(self) -> int:
        """The number of the present state."""
        return self.words[0] // 2

    @property
    def keys(self) -> Sequence[Any]:
        """The keys of the present state."""
        return self.states[self.number % len(self.states)]

    def show(self) -> None:
        """Write the rows of the present state over those of the one before."""
        self.memory[:] = -1
        self.memory[: len(self.keys)] = rows_of(self.number, len(self.keys))

    def pass_time(self) -> None:
        """A moment at which a change may come."""
        if self.kept_out:
            return
        for _ in range(self.script.pop(0) if self.script else 0):
            self.words[0] += 2
            self.show()

    def resident(self) -> Resident:
        """The table as it is now."""
        return ChangingTable(self)


def rows_of(number: int, count: int) -> NDArray[np.float32]:
    """The rows of a state."""
    return np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH) + 100 * number


class _Keys(Column):
    """The keys of a state: what a search finds is what the table has by then, but never a row behind its own."""

    def __init__(self, table: Changing) -> None:
        super().__init__(table.dtype, [*table.keys])
        self.table = table

    def search(self, wanted: KeyColumn | PackedStrings) -> Search:
        self.keys = [*self.table.keys]
        found = super().search(wanted)
        self.table.pass_time()
        return found


class ChangingTable(Resident):
    """The table at one moment."""

    def __init__(self, table: Changing) -> None:
        count = len(table.keys)
        memory = table.memory[:count].reshape(-1)
        tensor = Tensor(DTYPES["float32"], (count, WIDTH), memory)
        super().__init__(tensor, f"content-{table.number}", table.words[0], table.words, keys=_Keys(table))
        self.table = table

    def refreshed(self) -> Resident:
        return self.table.resident()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        self.table.kept_out = True
        self.table.holds += 1
        yield
        self.table.kept_out = False

    def exclude_writers(self) -> AbstractContextManager[object]:
        return self._hold()


class Kernel:
    """NumPy's kernel, after each run of which time passes for some tables."""

    def __init__(self, tables: Sequence[Changing]) -> None:
        self.tables = tables

    def _run(self, work: Callable[..., int], *given: Any, **named: Any) -> int:
        bad = work(*given, **named)
        for table in self.tables:
            table.pass_time()
        return bad

    def run(self, *given: Any, **named: Any) -> int:
        return self._run(reference.run, *given, **named)

    def lookup(self, *given: Any, **named: Any) -> int:
        return self._run(reference.lookup, *given, **named)


class ChangingTables(Store):
    """A store of such tables."""

    def __init__(self, **tables: Changing) -> None:
        self.tables = tables

    def get(self, reference: str) -> Resident | None:
        found = self.tables.get(reference)
        return None if found is None else found.resident()

    def names(self) -> list[str]:
        return [*self.tables]

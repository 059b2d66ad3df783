"""The catalogue's rows in the memory of each process, and how they are kept up to date.

The first word of the group's shared state is the generation: twice the number of the catalogue's last change. A process
whose rows are of that generation is up to date, so that a lookup costs one comparison however many tensors there are;
one that is behind reads the changes since, once for all of its lookups.

The word is odd from before a change is committed until after it, since in between SQLite may or may not show the change
already. A process that finds it odd asks SQLite, which takes some microseconds. It stays odd if the committing process
dies in between; then the lock of the catalogue is free, and the first process that finds it free repairs the word.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from app.store.catalogue import Catalogue, Row, Transaction, placeholder_name
from app.store.directory_lock import ProcessGroup
from app.store.shared_state import StateWord


class CatalogueCache:
    """The tensors of a store, as this process knows them."""

    def __init__(self, catalogue: Catalogue, group: ProcessGroup, on_change: Callable[[str], None]) -> None:
        """`on_change` is called with the name of each tensor that was replaced or removed."""
        self._catalogue = catalogue
        self._group = group
        self._state = group.state
        self._on_change = on_change
        self._lock = Lock()
        self._rows: dict[str, Row] = {}
        self._placeholders = 0
        self._sequence = 0
        self._version = 0, 0
        self._names: tuple[int, list[str]] = -1, []
        self.generation = -1
        """The generation that the rows are of."""
        self.total = 0
        """The bytes of all files."""

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Row | None:
        """The tensor of this name. Raises OSError where the catalogue cannot be read."""
        if self._state[StateWord.GENERATION] != self.generation:
            self.catch_up()
        row = self._rows.get(name)
        if row is None and self._placeholders:
            row = self._rows.get(placeholder_name(name))
        return row

    def is_current(self, row: Row, name: str) -> bool:
        """Whether `row` is this process's row of `name`; the catalogue may have a newer one."""
        return (self._rows.get(name) or self._rows.get(placeholder_name(name))) is row

    def rows(self) -> list[Row]:
        """All rows, those of damaged tensors without a name too, in no order."""
        self.catch_up()
        return list(self._rows.values())

    def names(self) -> list[str]:
        """The names of all tensors, sorted. The list is not to be changed."""
        self.catch_up()
        sequence, names = self._names
        if sequence != self._sequence:
            sequence = self._sequence
            names = sorted(name for name in list(self._rows) if ":" not in name)
            self._names = sequence, names
        return names

    def page(self, limit: int, after: str | None) -> tuple[list[Row], str | None]:
        """At most `limit` tensors in the order of their names, those after `after`; the last name if more follow."""
        names = self.names()
        start = bisect_right(names, after) if after is not None else 0
        found = [row for name in names[start : start + limit] if (row := self._rows.get(name)) is not None]
        return found, names[start + limit - 1] if start + limit < len(names) else None

    def catch_up(self) -> None:
        """Bring the rows up to date. Cheap where they are. Raises OSError."""
        with self._lock:
            generation = self._state[StateWord.GENERATION]
            if generation & 1:
                generation = self._repair_generation()
            if generation == self.generation:
                return
            if generation & 1:
                version = self._catalogue.data_version()
                if version != self._version:
                    self._reload()
                    self._version = version
                return
            self._reload()
            self.generation = generation

    def _repair_generation(self) -> int:
        """Repair an odd generation that a dead process has left; the generation as it is then."""
        with suppress(OSError), self._group.locks.try_catalogue() as idle:
            if idle and self._state[StateWord.GENERATION] & 1:
                self._state[StateWord.GENERATION] = 2 * self._catalogue.last_change()
        return self._state[StateWord.GENERATION]

    def _reload(self) -> None:
        changes = self._catalogue.changes_since(self._sequence) if self._sequence else None
        if changes is None:
            self._sequence, rows = self._catalogue.rows()
            known = {row.name: row for row in rows}
            for name in [name for name, row in self._rows.items() if known.get(name) != row]:
                self._set(name, known.get(name))
            for row in rows:
                if row.name not in self._rows:
                    self._set(row.name, row)
        else:
            for sequence, name, new in changes:
                self._set(name, new)
                self._sequence = sequence

    def _set(self, name: str, row: Row | None) -> None:
        old = self._rows.pop(name, None)
        if old is not None:
            self.total -= old.file_size
        if row is not None:
            self._rows[sys.intern(name)] = row
            self.total += row.file_size
        if ":" in name:
            self._placeholders += (row is not None) - (old is not None)
        self._on_change(name)

    @contextmanager
    def change(self) -> Iterator[Transaction]:
        """A transaction of the catalogue, committed and seen by every process when the context ends without an error.

        No other thread or process writes meanwhile, and the rows are up to date. Raises OSError.
        """
        state = self._state
        with self._group.locks.catalogue(), self._catalogue.transaction() as transaction:
            self.catch_up()
            try:
                yield transaction
                if transaction.changes_tensors:
                    state[StateWord.GENERATION] |= 1
                keys = transaction.key_count()
                # Never less than the real count, also if this process dies here: at 0 keys are not looked up.
                state[StateWord.KEYS] = max(state[StateWord.KEYS], keys)
                transaction.commit()
                state[StateWord.KEYS] = keys
            finally:
                if state[StateWord.GENERATION] & 1:
                    transaction.roll_back()
                    state[StateWord.GENERATION] = 2 * transaction.last_change()

"""The catalogue's rows in the memory of each process, and how they stay equal to it.

The first word that the group shares is the generation: twice the number of the catalogue's last change. A process whose
rows are of that generation is up to date, so that a lookup costs one comparison however many tensors there are; one
that is behind reads the changes since, once, for all of its lookups.

The word is odd from before a change is committed until after it, since nobody can tell in between whether SQLite
shows the change already. Who finds it odd asks SQLite, which takes some microseconds. It stays odd when whoever changed
the catalogue dies in between; then nobody has the group's lock, and the first who finds that sets the word right.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from app.store.catalogue import Catalogue, Row, Transaction, placeholder_name
from app.store.directory_lock import ProcessGroup, StateWord


class TensorIndex:
    """The tensors of a store, as this process knows them."""

    def __init__(self, catalogue: Catalogue, group: ProcessGroup, on_change: Callable[[str], None]) -> None:
        """`changed` is told the name of each tensor that has another content than before, or none."""
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
        """Whether `row` is what this process knows of `name`. Does not ask whether it knows the latest."""
        return (self._rows.get(name) or self._rows.get(placeholder_name(name))) is row

    def rows(self) -> list[Row]:
        """All tensors, those of unknown names too, in no order."""
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
        """Set an odd generation right unless somebody is at work who will; the generation as it is then."""
        with suppress(OSError), self._group.try_lock_catalogue() as idle:
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
        """Change the catalogue; what was done is durable and seen by every process when this ends without an error.

        Everybody else is kept from it meanwhile, and the rows are up to date. Raises OSError.
        """
        state = self._state
        with self._group.lock_catalogue(), self._catalogue.transaction() as transaction:
            self.catch_up()
            try:
                yield transaction
                if transaction.changes_tensors:
                    state[StateWord.GENERATION] |= 1
                keys = transaction.key_count()
                # Never fewer than there are, also where this process dies in between: of none nobody looks for one.
                state[StateWord.KEYS] = max(state[StateWord.KEYS], keys)
                transaction.commit()
                state[StateWord.KEYS] = keys
            finally:
                if state[StateWord.GENERATION] & 1:
                    transaction.roll_back()
                    state[StateWord.GENERATION] = 2 * transaction.last_change()

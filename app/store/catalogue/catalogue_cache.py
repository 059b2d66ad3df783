"""Each process's in-memory copy of the catalogue's rows, and how it is kept up to date.

The first word of the group's shared state is the generation: twice the number of the catalogue's last change. A process
whose rows have that generation is up to date, so a lookup costs one comparison, however many tensors there are. A
process that is behind reads the missing changes from the database before its next lookup.

The word becomes odd just before a change is committed and even again just afterwards, because in between SQLite may or
may not show the change. While the word is odd, a process queries SQLite for each lookup, which takes about ten
microseconds. If the committing process dies in between, the word stays odd although the catalogue's lock is free. The
first process that notices this repairs the word.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from threading import Lock
from typing import Final

from app.catalogue.records import Alias, NameRecord
from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_rows import Row
from app.store.catalogue.catalogue_transaction import Transaction
from app.store.processes.directory_lock import ProcessGroup, StateWord
from app.tensors.tensor_name import split_reference

_NO_ROWS: Final[Mapping[int, Row]] = {}
_NO_ALIASES: Final[Mapping[str, Alias]] = {}


class CatalogueCache:
    """This process's view of a store's tensors, versions and aliases.

    A version is looked up by a reference: the name of a tensor (for its current version, which has the highest number),
    `NAME@7`, or an alias.
    """

    def __init__(self, catalogue: Catalogue, group: ProcessGroup, on_removal: Callable[[str], None]) -> None:
        """Start with an empty cache. `on_removal` is called with each file that no longer belongs to a version."""
        self._catalogue = catalogue
        self._group = group
        self._state = group.state
        self._on_removal = on_removal
        self._lock = Lock()
        self._found: dict[str, Row] = {}
        """The versions of references that were looked up since the last change. Each change replaces the dict."""
        self._rows: dict[str, Row] = {}  # the current versions
        self._versions: dict[str, dict[int, Row]] = {}
        self._aliases: dict[str, Alias] = {}
        self._aliases_of: dict[str, dict[str, Alias]] = {}
        self._sequence = 0
        self.generation = -1
        """The generation of the rows."""
        self.total = 0
        """The total size of all files in bytes."""
        self.version_count = 0
        """The total number of versions of all tensors."""

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, reference: str) -> Row | None:
        """Return the version that a reference refers to, or None. Raises OSError if the catalogue cannot be read."""
        if self._state[StateWord.GENERATION] != self.generation:
            self.refresh()
        return self._found.get(reference) or self.find_all((reference,))[0]

    def find_all(self, references: Sequence[str]) -> list[Row | None]:
        """Return the versions that the references refer to at one moment.

        No change takes effect between the lookups. Raises OSError if the catalogue cannot be read.
        """
        if self._state[StateWord.GENERATION] != self.generation:
            self.refresh()
        known = self._found
        found = [known.get(reference) for reference in references]
        if None not in found:
            return found
        with self._lock:  # keeps other threads from applying a change
            known = self._found
            for reference in references:
                row = known.get(reference) or self._find(reference)
                if row is not None:
                    known[reference] = row
            return [known.get(reference) for reference in references]

    def _find(self, reference: str) -> Row | None:
        row = self._rows.get(reference)
        if row is not None:
            return row
        alias = self._aliases.get(reference)
        if alias is not None:
            return self._versions.get(alias.name, _NO_ROWS).get(alias.version)
        name, version = split_reference(reference)
        versions = self._versions.get(name)
        if versions is None:
            return None
        return self._rows.get(name) if version is None else versions.get(version)

    def versions(self, name: str) -> list[Row]:
        """Return the kept versions of a tensor, oldest first. The list is empty if there is no such tensor."""
        self.refresh()
        versions = self._versions.get(name)
        return sorted(versions.values(), key=attrgetter("number")) if versions else []

    def alias(self, alias: str) -> Alias | None:
        """Return the alias with this name, or None. Raises OSError if the catalogue cannot be read."""
        if self._state[StateWord.GENERATION] != self.generation:
            self.refresh()
        return self._aliases.get(alias)

    def record_of(self, name: str) -> NameRecord[Row]:
        """Return everything that a name refers to."""
        versions = self.versions(name)
        aliases = [alias for _, alias in sorted(self._aliases_of.get(name, _NO_ALIASES).items())]
        return NameRecord(name, versions, aliases, self._aliases.get(name))

    def rows(self) -> list[Row]:
        """Return all versions of all tensors, in no particular order."""
        self.refresh()
        return [row for versions in list(self._versions.values()) for row in list(versions.values())]

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        self.refresh()
        return sorted(self._rows)

    def alias_names(self) -> list[str]:
        """Return the names of all aliases, sorted."""
        self.refresh()
        return sorted(self._aliases)

    def page(self, limit: int, after: str | None) -> tuple[list[Row], str | None]:
        """Return the current versions of at most `limit` tensors by name, starting after the name `after`.

        The second value is the last returned name if more tensors follow, and otherwise None.
        """
        names, following = page_of(self.names(), limit, after)
        return [row for name in names if (row := self._rows.get(name)) is not None], following

    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        """Return at most `limit` aliases by name, starting after the name `after`.

        The second value is the last returned name if more aliases follow, and otherwise None.
        """
        names, following = page_of(self.alias_names(), limit, after)
        return [alias for name in names if (alias := self._aliases.get(name)) is not None], following

    def refresh(self) -> None:
        """Bring the rows up to date. Cheap if they already are. Raises OSError."""
        with self._lock:
            generation = self._state[StateWord.GENERATION]
            if generation & 1:
                generation = self._repair_generation()
            if generation == self.generation:
                return
            self._reload()
            if not generation & 1:
                self.generation = generation

    def _repair_generation(self) -> int:
        """Repair the generation if a dead process left it odd, and return the current generation."""
        with suppress(OSError), self._group.locks.try_catalogue() as idle:
            if idle and self._state[StateWord.GENERATION] & 1:
                self._state[StateWord.GENERATION] = 2 * self._catalogue.last_change()
        return self._state[StateWord.GENERATION]

    def _reload(self) -> None:
        changes = self._catalogue.changes_since(self._sequence) if self._sequence else None
        if changes == []:
            return
        if changes is None:
            self._sequence, rows, aliases = self._catalogue.rows()
            known = {(row.name, row.number): row for row in rows}
            for row in [row for versions in self._versions.values() for row in versions.values()]:
                if known.get((row.name, row.number)) != row:
                    self._set(row.name, row.number, known.get((row.name, row.number)))
            for row in rows:
                if row.number not in self._versions.get(row.name, _NO_ROWS):
                    self._set(row.name, row.number, row)
            named = {alias.alias: alias for alias in aliases}
            for name in {*self._aliases, *named}:
                if self._aliases.get(name) != named.get(name):
                    self._set_alias(name, named.get(name))
        else:
            for change in changes:
                now = change.now
                if isinstance(now, Alias) or not change.version:
                    self._set_alias(change.name, now if isinstance(now, Alias) else None)
                else:
                    self._set(change.name, change.version, now)
                self._sequence = change.sequence
        self._found = {}

    def _set(self, name: str, number: int, row: Row | None) -> None:
        # Other threads may be listing versions at the same time, so a version that is being replaced must always be
        # visible.
        name = sys.intern(name)
        versions = self._versions.setdefault(name, {})
        old = versions.get(number)
        if row is not None:
            versions[number] = row
            self.total += row.total_size
            self.version_count += 1
        else:
            versions.pop(number, None)
        if old is not None:
            self.total -= old.total_size
            self.version_count -= 1
        current = versions[max(versions)] if versions else None
        if current is not None:
            self._rows[name] = current
        else:
            self._rows.pop(name, None)
            del self._versions[name]
        if old is not None and (row is None or row.file != old.file):
            self._on_removal(old.file)

    def _set_alias(self, name: str, alias: Alias | None) -> None:
        old = self._aliases.get(name)
        if alias is not None:
            self._aliases[sys.intern(name)] = alias
            self._aliases_of.setdefault(sys.intern(alias.name), {})[name] = alias
        else:
            self._aliases.pop(name, None)
        if old is not None and (alias is None or alias.name != old.name):
            others = self._aliases_of[old.name]
            del others[name]
            if not others:
                del self._aliases_of[old.name]

    @contextmanager
    def change(self) -> Iterator[Transaction]:
        """Yield a catalogue transaction.

        If the context ends without an error, the transaction is committed and becomes visible to every process.

        Inside the context, the rows are up to date and no other thread or process writes. Raises OSError.
        """
        state = self._state
        with self._group.locks.catalogue(), self._catalogue.transaction() as transaction:
            self.refresh()
            try:
                yield transaction
                if transaction.changes_tensors:
                    state[StateWord.GENERATION] |= 1
                keys = transaction.key_count()
                # KEYS must never be lower than the real count, even if this process dies here, because keys are not
                # looked up when it is 0.
                state[StateWord.KEYS] = max(state[StateWord.KEYS], keys)
                transaction.commit()
                state[StateWord.KEYS] = keys
            finally:
                if state[StateWord.GENERATION] & 1:
                    transaction.roll_back()
                    state[StateWord.GENERATION] = 2 * transaction.last_change()


def page_of(names: list[str], limit: int, after: str | None) -> tuple[list[str], str | None]:
    """Return at most `limit` of the sorted names, starting after `after`, and the last returned name if more follow."""
    start = bisect_right(names, after) if after is not None else 0
    return names[start : start + limit], names[start + limit - 1] if start + limit < len(names) else None

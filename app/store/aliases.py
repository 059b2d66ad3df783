"""Change the aliases of a store by the rules of `app.catalogue.aliases`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from app.catalogue import aliases
from app.catalogue.aliases import AliasMove, new_etag
from app.catalogue.conditions import Conditions
from app.catalogue.records import Alias
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import AnsweredKey
from app.store.idempotency import IdempotencyKeys
from app.store.processes.directory_lock import ProcessGroup
from app.store.quota import QuotaCheck
from app.store.scatters.log_replay import ReplayedLogs
from app.store.store_errors import storage_errors


@dataclass
class Aliases:
    """Changes the aliases of a store. All methods do blocking disk I/O."""

    _group: ProcessGroup
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _quota: QuotaCheck

    def put(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        """Create or move aliases, durably and visible to all readers at once. Returns each alias and whether it is new.

        May raise everything `aliases.moved` raises, and insufficient_storage.
        """
        etags = [new_etag() for _ in moves]
        with storage_errors(), self._locked([move.alias for move in moves]) as keys:
            with self._index.change() as transaction:
                made = aliases.moved(moves, self._index.record_of, time.time_ns(), etags)
                for alias, _ in made:
                    if alias.etag in etags:
                        transaction.put_alias(alias)
                self._quota.check_aliases(sum(is_new for _, is_new in made))
                self._keys.store(transaction, keys)
            self._index.catch_up()
        return made

    def delete(self, alias: str, conditions: Conditions) -> None:
        """Remove an alias, durably. May raise everything `aliases.removed_alias` raises, and insufficient_storage."""
        with storage_errors(), self._locked([alias]) as keys:
            with self._index.change() as transaction:
                aliases.removed_alias(self._index.record_of(alias), conditions)
                transaction.remove_alias(alias)
                self._keys.store(transaction, keys)
            self._index.catch_up()

    @contextmanager
    def _locked(self, names: Sequence[str]) -> Iterator[Sequence[AnsweredKey]]:
        """Hold the locks of the tensors that these aliases name, so that no alias changes and no scatter uses one.

        Yields the Idempotency-Keys with these aliases as scope that are only in the redo logs of those tensors.
        """
        while True:
            old = {alias: self._index.alias(alias) for alias in names}
            with self._group.locks.tensors(name if one is None else one.name for name, one in old.items()):
                if any(self._index.alias(alias) != one for alias, one in old.items()):
                    continue
                rows = {self._index.find(one.reference) for one in old.values() if one is not None}
                keys = [key for row in rows if row is not None for key in self._logs.keys_of(row)]
                yield [key for key in keys if key.scope in old]
                return

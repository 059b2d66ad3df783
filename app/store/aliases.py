"""Aliases: names that stand for one version of a tensor each, and move to another one in one step.

Tensors and aliases share their names: no tensor is uploaded under the name of an alias, nor an alias made of the name
of a tensor. What an alias names is neither removed nor given up at an upload.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from app.errors import GatherError
from app.near_name import shorten
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Alias, AnsweredKey, Row
from app.store.idempotency import IdempotencyKeys
from app.store.processes.directory_lock import ProcessGroup
from app.store.quota import QuotaCheck
from app.store.scatters.log_replay import ReplayedLogs
from app.store.store_errors import name_conflict, no_alias, storage_errors
from app.store.tensor_metadata import Conditions
from app.tensors.tensor_name import split_reference


@dataclass
class Aliases:
    """Changes of the aliases of a store. All methods block on the disk."""

    _group: ProcessGroup
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _quota: QuotaCheck

    def find(self, alias: str) -> Alias:
        """The alias of this name. Raises tensor_not_found."""
        found = self._index.alias(alias)
        if found is None:
            is_tensor = self._index.find(alias) is not None
            raise no_alias(alias, is_tensor=is_tensor, names=self._index.alias_names())
        return found

    def find_target(self, reference: str) -> Row | None:
        """The version that an alias is to name, None if there is none.

        Raises invalid_field, at /tensor, for what does not name one version, written `NAME@7`.
        """
        name, version = split_reference(reference)
        row = self._index.find(reference)
        if version is not None:
            return None if self._index.alias(name) is not None else row
        if self._index.alias(name) is not None:
            detail = "an alias names one version of a tensor, never an alias"
            hint = f"Write the version that GET /aliases/{name} says it names."
        else:
            detail = f"an alias names one version of a tensor, and {shorten(reference)!r} has no number"
            hint = "Name a tensor that GET /tensors lists, and behind @ a version that it has."
            row = row or self._index.find(reference.partition("@")[0])
            if row is not None:
                hint = f"Write '{row.reference}' at /tensor, which is its current version."
        raise GatherError("invalid_field", detail, pointer="/tensor", hint=hint)

    def put(self, alias: str, target: Row, conditions: Conditions) -> tuple[Alias, bool]:
        """Make or move an alias, durably and at once for every reader: the alias, and whether it is new.

        It keeps its ETag where it names that version already. Raises name_conflict, precondition_failed,
        insufficient_storage, and LookupError where `target` is not kept any more.
        """
        with storage_errors(), self._locked(alias) as (old, keys):
            now = time.time_ns()
            new = Alias(
                alias, target.name, target.version, f'"{uuid4().hex}"', now if old is None else old.created, now
            )
            if old is not None and old.reference == new.reference:
                conditions.check(old.etag, "alias")
                return old, False
            self._enter(new, old, target, conditions, keys)
            self._index.catch_up()
        return new, old is None

    def _enter(
        self, new: Alias, old: Alias | None, target: Row, conditions: Conditions, keys: Sequence[AnsweredKey]
    ) -> None:
        with self._index.change() as transaction:
            tensor = self._index.find(new.alias)
            if old is None and tensor is not None:
                raise name_conflict(new.alias, is_alias=False)
            conditions.check(None if old is None else old.etag, "alias")
            if self._index.find(target.reference) is None:
                raise LookupError(target.reference)
            if old is None:
                self._quota.check_aliases()
            transaction.put_alias(new)
            self._keys.store(transaction, keys)

    def delete(self, alias: str, conditions: Conditions) -> None:
        """Remove an alias, durably.

        Raises tensor_not_found, name_conflict, precondition_failed and insufficient_storage.
        """
        with storage_errors(), self._locked(alias) as (old, keys):
            if old is None:
                if self._index.find(alias) is not None:
                    raise name_conflict(alias, is_alias=False)
                raise no_alias(alias, is_tensor=False)
            conditions.check(old.etag, "alias")
            with self._index.change() as transaction:
                transaction.remove_alias(alias)
                self._keys.store(transaction, keys)
            self._index.catch_up()

    @contextmanager
    def _locked(self, alias: str) -> Iterator[tuple[Alias | None, Sequence[AnsweredKey]]]:
        """The alias, None if there is none, and the keys given with it that only the log of what it names has.

        Within the lock of the tensor that it names, in which no scatter through the alias is carried out, and whoever
        else changes the alias waits.
        """
        while True:
            old = self._index.alias(alias)
            with self._group.locks.tensor(alias if old is None else old.name):
                if self._index.alias(alias) != old:
                    continue
                keys: Sequence[AnsweredKey] = ()
                row = None if old is None else self._index.find(old.reference)
                if row is not None:
                    keys = self._logs.unexpired_keys_of_scope(row, alias)
                yield old, keys
                return


def check_no_alias(index: CatalogueCache, name: str) -> None:
    """Raises name_conflict where a name, which a tensor is to have, is that of an alias."""
    if index.alias(name) is not None:
        raise name_conflict(name, is_alias=True)

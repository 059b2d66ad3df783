"""The quota of a store: how many tensors, aliases, bytes and Idempotency-Keys it may hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files.remove_leftovers import UploadFolder
from app.store.store_errors import over_quota


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a store: `total` bytes of all tensor files (None: the size of the disk), tensors, and keys.

    `total` includes all versions. `tensors` limits the number of tensor names, and also the number of aliases. `keys`
    limits the Idempotency-Keys of the last 24 hours, which `idempotency` counts.
    """

    total: int | None = None
    tensors: int = 10_000
    keys: int = 10_000_000


@dataclass
class QuotaCheck:
    """Compares tensors and uploads in progress with the quota."""

    _quota: Quota
    _index: CatalogueCache
    _uploads: UploadFolder

    def check_count(self, old: Row | None) -> None:
        """Raise insufficient_storage if a tensor that replaces `old` (None: a new one) is one too many."""
        if len(self._index) + (old is None) > self._quota.tensors:
            raise over_quota("tensors", self._quota.tensors)

    def check_aliases(self, more: int) -> None:
        """Raise insufficient_storage if `more` additional aliases exceed the quota."""
        if more and len(self._index.alias_names()) + more > self._quota.tensors:
            raise over_quota("aliases", self._quota.tensors)

    def check_bytes(self, removed: Iterable[Row], size: int, upload: str = "") -> None:
        """Raise insufficient_storage if replacing the versions `removed` by `size` bytes exceeds the quota.

        All uploads in progress count, except the one with the id `upload`.
        """
        if self._quota.total is None:
            return
        kept = self._index.total - sum(row.total_size for row in removed)
        if kept + self._uploads.size(without=upload) + size > self._quota.total:
            raise over_quota("bytes", self._quota.total)

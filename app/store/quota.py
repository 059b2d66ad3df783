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
    """The most that a store holds: bytes of all files of tensors (None: what the disk holds), tensors, and keys.

    All versions count in the bytes, and names in `tensors`, which is as well the most aliases that there may be.
    `keys` are the Idempotency-Keys of the last 24 hours, which `idempotency` counts.
    """

    total: int | None = None
    tensors: int = 10_000
    keys: int = 10_000_000


@dataclass
class QuotaCheck:
    """Compares tensors and uploads under way with the quota."""

    _quota: Quota
    _index: CatalogueCache
    _uploads: UploadFolder

    def check_count(self, old: Row | None) -> None:
        """Raises insufficient_storage if one tensor in the place of `old` is too many."""
        if len(self._index) + (old is None) > self._quota.tensors:
            raise over_quota("tensors", self._quota.tensors)

    def check_aliases(self, more: int) -> None:
        """Raises insufficient_storage if `more` further aliases exceed the quota."""
        if more and len(self._index.alias_names()) + more > self._quota.tensors:
            raise over_quota("aliases", self._quota.tensors)

    def check_bytes(self, removed: Iterable[Row], size: int, upload: str = "") -> None:
        """Raises insufficient_storage if `size` more bytes in the place of versions `removed` are over the quota.

        All uploads under way count, but for the one with the id `upload`.
        """
        if self._quota.total is None:
            return
        kept = self._index.total - sum(row.total_size for row in removed)
        if kept + self._uploads.size(without=upload) + size > self._quota.total:
            raise over_quota("bytes", self._quota.total)

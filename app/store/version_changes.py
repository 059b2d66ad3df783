"""Changes of versions: the upload that makes the next one of its name, its commit, and the removal of one or of all.

They happen within the lock of the tensor. A version is entered, and those that it supersedes leave, in one transaction
of the catalogue; their files are removed after it, or by `remove_leftovers` if the process dies before.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from app.store.aliases import check_no_alias
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import AnsweredKey, Row
from app.store.catalogue.catalogue_transaction import Transaction
from app.store.files import disk_writes
from app.store.files.tensor_file import Description
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.idempotency import IdempotencyKeys
from app.store.processes.directory_lock import ProcessGroup
from app.store.quota import QuotaCheck
from app.store.scatters.log_replay import ReplayedLogs
from app.store.store_errors import name_conflict, storage_errors, tensor_in_use
from app.store.tensor_metadata import ALWAYS, Conditions
from app.tensors.tensor_name import split_reference


@dataclass
class VersionChanges:
    """Enters and removes versions of tensors. All methods block on the disk."""

    _group: ProcessGroup
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _quota: QuotaCheck
    _keep_versions: int
    """For uploads that do not say how many."""
    _etag_of: Callable[[Row], str]
    """Gives the present ETag of a version."""

    def begin(self, upload: Upload, replaced: Row | None = None) -> None:
        """Open an upload, which the quota counts from now on: as the next version of its tensor, or in the place of the
        version `replaced`.

        Raises name_conflict and insufficient_storage.
        """
        name = upload.spec.name

        def check_bytes(size: int) -> None:
            gone = self._superseded(upload.spec) if replaced is None else [replaced]
            self._quota.check_bytes(gone, size)

        with storage_errors(upload.abandon), self._group.locks.uploads():
            if replaced is None:
                check_no_alias(self._index, name)
                self._quota.check_count(self._index.find(name))
            check_bytes(upload.reserved)
            free = os.statvfs(upload.path.parent)
            if upload.expected is not None and upload.expected > free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            upload.open(partial(check_bytes, 0))

    def commit(self, upload: Upload, conditions: Conditions) -> tuple[Row, bool]:
        """Make a finished upload the next version of its tensor: its row, and whether the name is new.

        Raises name_conflict, precondition_failed and insufficient_storage, and abandons the upload then.
        """
        with storage_errors(upload.abandon):
            name, now = upload.spec.name, time.time_ns()
            description = upload.describe()
            upload.seal(description, 0, now)
            with self._group.locks.tensor(name):
                check_no_alias(self._index, name)
                old = self._index.find(name)
                if conditions != ALWAYS:
                    conditions.check(None if old is None else self._etag_of(old))
                return self._commit_version(upload, description, old, now), old is None

    def _commit_version(self, upload: Upload, description: Description, old: Row | None, now: int) -> Row:
        """Enter a sealed upload as the next version of its tensor, whose current one is `old`."""
        name = description.name
        created = now if old is None else old.created
        # Read before the transaction, since a log may be long; within the tensor's lock none of them changes.
        leaving = [*self._superseded(upload.spec), *([] if old is None else [old])]
        keys = {row: self._logs.unexpired_keys(row) for row in leaving}
        with self._index.change() as transaction:
            check_no_alias(self._index, name)
            self._quota.check_count(old)
            number = transaction.next_version(name)
            row = row_of(description, upload.id, created, now, number)
            gone = self._superseded(upload.spec)  # again, since aliases may have been moved
            answers = [
                answer for each in gone for answer in (keys[each] if each in keys else self._logs.unexpired_keys(each))
            ]
            if old is not None and old not in gone:
                # The name stands for another content from now on, and the keys given with it are looked for elsewhere.
                answers += [answer for answer in keys[old] if answer.scope == name]
            self.install(transaction, upload, row, gone, answers)
        self.finish(upload, gone)
        return row

    def _superseded(self, spec: UploadSpec) -> list[Row]:
        """The versions that go when the next one is entered."""
        named = {alias.version for alias in self._index.aliases_of(spec.name)}
        return superseded(self._index.versions(spec.name), spec.keep or self._keep_versions, named)

    def install(
        self, transaction: Transaction, upload: Upload, row: Row, gone: Sequence[Row], answers: Sequence[AnsweredKey]
    ) -> None:
        """Give a sealed upload its place and enter its row; `gone` go, `answers` are Idempotency-Keys to be kept."""
        self._quota.check_bytes(gone, row.file_size, upload.id)
        path = self._logs.tensor_folder / row.file
        try:
            disk_writes.rename(upload.path, path)
            disk_writes.fsync_folder(self._logs.tensor_folder)
            transaction.put(row)
            for each in gone:
                if each.reference != row.reference:
                    transaction.remove(each)
            self._keys.store(transaction, answers)
        except BaseException:
            with suppress(OSError):
                disk_writes.unlink(path)
            raise
        # A refused commit leaves the file, since a crash may yet make the commit durable: see `remove_leftovers`.

    def finish(self, upload: Upload, gone: Sequence[Row], content: str | None = None) -> None:
        """After the commit: remove the files of what is gone, but for the log of `content`."""
        upload.close()
        self._index.catch_up()
        for row in gone:
            self._remove_files(row, content)

    def _remove_files(self, row: Row, content: str | None = None) -> None:
        """Remove the file of a replaced or removed content, and its log unless the new content has the same id."""
        if row.content != content:
            self._logs.remove(row.content)
        # What cannot be removed now is removed later: see `remove_leftovers`.
        with suppress(OSError):
            disk_writes.unlink(self._logs.tensor_folder / row.file)

    def remove(self, reference: str, conditions: Conditions) -> bool:
        """Remove a tensor with all its versions, or one version; False where there is none.

        Raises name_conflict for an alias, tensor_in_use, precondition_failed and insufficient_storage.
        """
        name, number = split_reference(reference)
        with storage_errors(), self._group.locks.tensor(name):
            if self._index.alias(reference) is not None:
                raise name_conflict(reference, is_alias=True)
            row = self._index.find(reference)
            if row is None:
                return False
            if conditions != ALWAYS:
                conditions.check(self._etag_of(row))
            rows = self._index.versions(name) if number is None else [row]
            answers = [answer for each in rows for answer in self._logs.unexpired_keys(each)]
            self._remove(reference, rows, answers)
            # This process unmaps it now, others at their next sweep; then the disk gets the space back.
            self._index.catch_up()
            for each in rows:
                self._remove_files(each)
        return True

    def _remove(self, reference: str, rows: Sequence[Row], answers: Sequence[AnsweredKey]) -> None:
        with self._index.change() as transaction:
            removed = {row.reference for row in rows}
            aliases = [alias for alias in self._index.aliases_of(rows[0].name) if alias.reference in removed]
            if aliases:
                raise tensor_in_use(reference, aliases)
            for row in rows:
                transaction.remove(row)
            self._keys.store(transaction, answers)


def row_of(description: Description, file: str, created: int, modified: int, version: int) -> Row:
    """The row of an upload's content in `file`."""
    return Row(
        description.name, description.id, file, description.dtype, description.shape, description.size,
        description.file_size, description.sha256, created, modified, description.prefault, description.lock, version,
    )  # fmt: skip


def superseded(versions: Sequence[Row], keep: int, named: Collection[int]) -> list[Row]:
    """Those of `versions`, the oldest first, that go once one more is there and the `keep` newest stay.

    Versions whose numbers are in `named`, which aliases name, stay beside them.
    """
    older = versions[: max(0, len(versions) + 1 - keep)]
    return [row for row in older if row.version not in named]

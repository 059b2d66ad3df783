"""Publish and remove versions of tensors: begin and commit an upload, and remove one or all versions.

Aliases of versions are also changed here, according to the rules in `app.catalogue.aliases`. The quota limits how many
tensors, aliases, bytes and Idempotency-Keys a store may hold.

Commits and removals hold the tensor's lock. A single catalogue transaction inserts a version and removes the versions
that it supersedes. The files of removed versions are deleted afterwards, or by `remove_leftovers` if the process dies
first.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from app.catalogue import aliases, versions
from app.catalogue.aliases import AliasMove, new_etag
from app.catalogue.conditions import Conditions
from app.catalogue.records import Alias
from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import AnsweredKey, Row, RowCounts, StoredKeys
from app.store.catalogue.catalogue_transaction import Transaction
from app.store.files import disk_writes
from app.store.files.remove_leftovers import UploadFolder
from app.store.files.tensor_file import DAMAGED, BadFile, Description, HeaderWord
from app.store.files.write_uploaded_tensor import Upload
from app.store.idempotency import IdempotencyKeys
from app.store.processes.directory_lock import ProcessGroup
from app.store.scatters.log_replay import ReplayedLogs
from app.store.store_errors import over_quota, storage_errors
from app.store.tensor_metadata import read_first_page
from app.tensors.tensor_name import split_reference


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a store.

    `total` is the maximum size of all tensor files in bytes, including all versions; None means the size of the disk.
    `tensors` limits the number of tensor names and, separately, the number of aliases. `keys` limits the number of
    Idempotency-Keys from the last 24 hours, as counted by `idempotency`.
    """

    total: int | None = None
    tensors: int = 10_000
    keys: int = 10_000_000


@dataclass
class QuotaCheck:
    """Check tensors and uploads in progress against the quota."""

    _quota: Quota
    _index: CatalogueCache
    _uploads: UploadFolder

    def check_count(self, old: Row | None) -> None:
        """Raise insufficient_storage if the quota forbids replacing `old` or, if `old` is None, adding a tensor."""
        if len(self._index) + (old is None) > self._quota.tensors:
            raise over_quota("tensors", self._quota.tensors)

    def check_aliases(self, more: int) -> None:
        """Raise insufficient_storage if `more` additional aliases would exceed the quota."""
        if more and len(self._index.alias_names()) + more > self._quota.tensors:
            raise over_quota("aliases", self._quota.tensors)

    def check_bytes(self, removed: Iterable[Row], size: int, upload: str = "") -> None:
        """Raise insufficient_storage if replacing the versions in `removed` with `size` bytes would exceed the quota.

        All uploads in progress count, except for the upload with the ID `upload`.
        """
        if self._quota.total is None:
            return
        kept = self._index.total - sum(row.total_size for row in removed)
        if kept + self._uploads.size(without=upload) + size > self._quota.total:
            raise over_quota("bytes", self._quota.total)


@dataclass(frozen=True, slots=True)
class CarriedKey:
    """An Idempotency-Key being sent to another machine.

    `age` is the time in nanoseconds since the key's request was completed.

    `counts` holds the `RowCounts` that were returned for an upsert or a removal.
    """

    key: str
    digest: str
    sequence: int
    age: int
    counts: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class CopiedContent:
    """The state of a replicated version copied to this machine, as of record number `sequence`.

    `sequence_epoch` is that record's epoch, or 0 if unknown. `epoch` is recorded as the highest epoch that the copy has
    seen. `sha256` is the hash of the content as originally uploaded; if it is empty, the copy's own hash is used.
    """

    sequence: int
    epoch: int
    sequence_epoch: int = 0
    keys: Sequence[CarriedKey] = ()
    sha256: str = ""


@dataclass
class VersionChanges:
    """Publish and remove versions of tensors, and change aliases. All methods do blocking disk I/O."""

    _group: ProcessGroup
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _quota: QuotaCheck
    _keep_versions: int
    """Number of versions to keep after an upload that does not specify a number."""
    _etag_of: Callable[[Row], str]
    """A function that returns the current ETag of a version."""

    def begin(self, upload: Upload, replaced: Row | None = None) -> None:
        """Open an upload. It counts against the quota from then on.

        The upload will become the next version of its tensor or, if `replaced` is given, replace that version's files.
        Raises name_conflict and insufficient_storage.
        """
        name, keep = upload.spec.name, upload.spec.keep or self._keep_versions

        def check_bytes(size: int) -> None:
            gone = versions.select_surplus(self._index.record_of(name), keep) if replaced is None else [replaced]
            self._quota.check_bytes(gone, size)

        with storage_errors(upload.abandon), self._group.locks.uploads():
            if replaced is None:
                versions.check_new_version(self._index.record_of(name))
                self._quota.check_count(self._index.find(name))
            check_bytes(upload.reserved)
            free = os.statvfs(upload.path.parent)
            if upload.reserved > free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            upload.open(partial(check_bytes, 0))

    def commit(self, upload: Upload, conditions: Conditions) -> tuple[Row, bool]:
        """Publish a finished upload as the next version of its tensor. Returns its row, and whether the name is new.

        Raises name_conflict, precondition_failed and insufficient_storage, and abandons the upload in those cases.
        precondition_failed is also raised if the current version is replicated, because only a copy may replace a
        replicated version.
        """
        name, keep, now = upload.spec.name, upload.spec.keep or self._keep_versions, time.time_ns()

        def going() -> Sequence[Row]:
            return versions.select_replaced(self._index.record_of(name), keep, conditions, self._etag_of)

        with storage_errors(upload.abandon):
            description = upload.describe()
            upload.seal(description, 0, now)
            with self._group.locks.tensor(name):
                old = self._index.record_of(name).current
                if old is not None and self._is_replicated(old):
                    raise GatherError("precondition_failed", f"{name!r} is replicated: its rows come from other shards")
                created = now if old is None else old.created
                # Read the logs before the transaction, because they may be long. The tensor's lock keeps them
                # unchanged.
                leaving = {*going(), *([] if old is None else [old])}
                keys = {row: self._logs.keys_of(row) for row in leaving}
                with self._index.change() as transaction:
                    gone = going()  # recompute this, because aliases may have moved
                    self._quota.check_count(old)
                    number = transaction.next_version(name)
                    row = row_of(description, upload.id, created, now, number, upload.spec.note, upload.keys)
                    answers = [
                        answer for each in gone for answer in (keys[each] if each in keys else self._logs.keys_of(each))
                    ]
                    if old is not None and old not in gone:
                        # The name now refers to a different version, so keys with this scope must move to the
                        # catalogue.
                        answers += [answer for answer in keys[old] if answer.scope == name]
                    self.install(transaction, upload, row, gone, answers)
                self.finish(upload, gone)
            return row, old is None

    def _is_replicated(self, row: Row) -> bool:
        """Return whether a version is replicated and not damaged."""
        try:
            words = memoryview(read_first_page(self._logs.tensor_folder / row.file)[1]).cast("Q")
        except (OSError, BadFile):
            return False
        return words[HeaderWord.EPOCH] > 0 and not words[HeaderWord.VERSION] & DAMAGED

    def adopt(self, upload: Upload, copied: CopiedContent, judge: Callable[[Row | None], bool]) -> Row | None:
        """Publish a finished upload, which is a copy of a replicated version, as the only version of its tensor.

        Returns its row.

        While the tensor's lock is held, `judge` is called with the row of the current version, or with None. If `judge`
        returns False, the upload is abandoned and the result is None. The upload is also abandoned if this method
        raises insufficient_storage.
        """
        name, now, sequence = upload.spec.name, time.time_ns(), copied.sequence
        with storage_errors(upload.abandon):
            described = upload.describe()
            described = replace(described, sha256=copied.sha256 or described.sha256)
            upload.seal(described, sequence, now, {
                HeaderWord.EPOCH: copied.epoch,
                HeaderWord.APPLIED_EPOCH: copied.sequence_epoch,
                HeaderWord.SESSION: self._logs.session(),
                HeaderWord.CONFIRMED: self._logs.session(),
                HeaderWord.LOGGED: sequence,
                HeaderWord.DURABLE_EPOCH: copied.epoch,
            })  # fmt: skip
            with self._group.locks.tensor(name):
                gone = self._index.versions(name)
                if not judge(gone[-1] if gone else None):
                    upload.abandon()
                    return None
                with self._index.change() as transaction:
                    number = transaction.next_version(name)
                clock = self._keys.clock.now()
                answers = {(one.scope, one.key): one for row in gone for one in self._logs.keys_of(row)}
                for one in copied.keys:
                    etag = described.etag(one.sequence)
                    counts = None if one.counts is None else RowCounts(*one.counts)
                    answers[name, one.key] = AnsweredKey(
                        name, one.key, one.digest, etag, clock - one.age, number, counts
                    )
                # Store the keys before the content: a key that becomes known too early does no harm.
                self._keys.store_in_parts([*answers.values()])
                created = gone[-1].created if gone else now
                row = row_of(described, upload.id, created, now, number, upload.spec.note, upload.keys)
                with self._index.change() as transaction:
                    self._quota.check_count(gone[-1] if gone else None)
                    self.install(transaction, upload, row, gone, ())
                self.finish(upload, gone)
            return row

    def install(
        self, transaction: Transaction, upload: Upload, row: Row, gone: Sequence[Row], answers: Sequence[AnsweredKey]
    ) -> None:
        """Move a sealed upload's files to their final names, and insert its row.

        Remove the rows in `gone`, and store `answers`.
        """
        self._quota.check_bytes(gone, row.total_size, upload.id)
        places = [(path, self._logs.tensor_folder / name) for path, name in upload.places(row.file)]
        try:
            for path, target in places:
                disk_writes.rename(path, target)
            disk_writes.fsync_folder(self._logs.tensor_folder)
            transaction.put(row)
            for each in gone:
                if each.reference != row.reference:
                    transaction.remove(each)
            self._keys.store(transaction, answers)
        except BaseException:
            with suppress(OSError):
                for _, target in places:
                    disk_writes.unlink(target)
            raise
        # If the commit fails, the file stays, because a crash may still make the commit durable; see
        # `remove_leftovers`.

    def finish(self, upload: Upload, gone: Sequence[Row], content: str | None = None) -> None:
        """After the commit, remove the files of the versions `gone`, except the log of `content`."""
        upload.close()
        self._index.refresh()
        for row in gone:
            self._remove_files(row, content)

    def _remove_files(self, row: Row, content: str | None = None) -> None:
        """Remove the files of a replaced or removed version, including those of its keys.

        The version's log, which contains Idempotency-Keys, is also removed, unless the version's content ID is
        `content`, the ID of the new content.
        """
        if row.content != content:
            self._logs.remove(row.content)
        # Ignore errors: `remove_leftovers` removes the files later.
        with suppress(OSError):
            for name in row.files:
                disk_writes.unlink(self._logs.tensor_folder / name)

    def remove(self, reference: str, conditions: Conditions) -> None:
        """Remove a tensor with all its versions, or a single version.

        May raise everything that `versions.select_removed` raises, and insufficient_storage.
        """
        name = split_reference(reference)[0]

        def going() -> Sequence[Row]:
            return versions.select_removed(self._index.record_of(name), reference, conditions, self._etag_of)

        with storage_errors(), self._group.locks.tensor(name):
            # Read the logs before the transaction, because they may be long. The tensor's lock keeps them unchanged.
            answers = [answer for each in going() for answer in self._logs.keys_of(each)]
            with self._index.change() as transaction:
                rows = going()  # recompute this, because aliases may have moved
                for each in rows:
                    transaction.remove(each)
                self._keys.store(transaction, answers)
            # This process unmaps the content now, and the others do so at their next sweep. The disk space is freed
            # after that.
            self._index.refresh()
            for each in rows:
                self._remove_files(each)

    def put_aliases(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        """Durably create or move aliases; readers see all changes at once. Returns each alias and whether it is new.

        May raise everything that `aliases.move_aliases` raises, and insufficient_storage.
        """
        etags = [new_etag() for _ in moves]
        with storage_errors(), self._locked_aliases([move.alias for move in moves]) as keys:
            with self._index.change() as transaction:
                made = aliases.move_aliases(moves, self._index.record_of, time.time_ns(), etags)
                for alias, _ in made:
                    if alias.etag in etags:
                        transaction.put_alias(alias)
                self._quota.check_aliases(sum(is_new for _, is_new in made))
                self._keys.store(transaction, keys)
            self._index.refresh()
        return made

    def delete_alias(self, alias: str, conditions: Conditions) -> None:
        """Durably remove an alias.

        May raise everything that `aliases.alias_to_remove` raises, and insufficient_storage.
        """
        with storage_errors(), self._locked_aliases([alias]) as keys:
            with self._index.change() as transaction:
                aliases.alias_to_remove(self._index.record_of(alias), conditions)
                transaction.remove_alias(alias)
                self._keys.store(transaction, keys)
            self._index.refresh()

    @contextmanager
    def _locked_aliases(self, names: Sequence[str]) -> Iterator[Sequence[AnsweredKey]]:
        """Lock the tensors that these aliases point to, so that no alias changes and no scatter uses one.

        Yields the Idempotency-Keys that have one of these aliases as their scope and exist only in those tensors' redo
        logs.
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


def row_of(
    description: Description,
    file: str,
    created: int,
    modified: int,
    version: int,
    note: str,
    keys: StoredKeys | None = None,
) -> Row:
    """Return the catalogue row for an upload whose content is in the file `file`."""
    return Row(
        description.name, description.id, file, description.dtype, description.shape, description.size,
        description.file_size, description.sha256, created, modified, description.prefault, description.lock, version,
        note, keys,
    )  # fmt: skip

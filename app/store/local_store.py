"""The store on the local disk: finding tensors, uploading, replacing, scattering and removing them.

A lookup of an unchanged tensor costs two comparisons with shared memory and one of the file's size. All methods but
`get` block on the disk and belong on a thread; any number of threads and processes may call at the same time.

    format              the version of this layout: see `layout_migrations`
    catalogue.sqlite    which tensors there are, and which Idempotency-Keys were answered: see `catalogue`
    tensors/            one file for each content: see `tensor_file`
    logs/               one redo log for each content that scatters have changed: see `scatter_log`
    incoming/           uploads under way: see `write_uploaded_tensor`
    snapshots/          pages kept for downloads while scatters change a content: see `download_snapshots`
    reserve.0 reserve.1 room for when the disk is full: see `disk_reserve`
    lock members state  see `directory_lock`
    locks/              see `store_locks`

The module is long because it combines these parts: each method is one operation on a tensor, from its checks to its
commit, and needs most of them.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final

from app.errors import GatherError
from app.store import disk_writes, download_snapshots, layout_migrations
from app.store.catalogue import FILE, AnsweredKey, Catalogue, Row
from app.store.catalogue_cache import CatalogueCache
from app.store.directory_lock import ProcessGroup
from app.store.disk_reserve import DiskReserve
from app.store.download_snapshots import Snapshot
from app.store.file_system_check import check_folder, check_processor
from app.store.group_commit import MAX_BATCH, QueuedScatter, ScatterQueues, Take
from app.store.idempotency import IdempotencyKeys
from app.store.log_replay import ReplayedLogs
from app.store.mapped_tensor import CurrentContent, MappedContent
from app.store.pending_scatter import PendingScatter, ScatterChange
from app.store.quota import Quota, QuotaCheck
from app.store.remove_leftovers import OrphanedFiles, UploadFolder, file_names, remove_or_warn
from app.store.scatter_checkpoints import Checkpoints
from app.store.scatter_execution import ScatterExecutor
from app.store.scatter_strings import replaced_strings
from app.store.shared_state import StateWord
from app.store.store_errors import damaged, not_found, over_quota, storage_errors, unreadable
from app.store.store_interface import Resident
from app.store.tensor_file import BadFile, Description, HeaderWord, page_version
from app.store.tensor_metadata import (
    ALWAYS,
    Conditions,
    Metadata,
    damaged_metadata,
    metadata_of,
    read_first_page,
)
from app.store.verify import Verifier
from app.store.writable_tensor import WritableTensor
from app.store.write_uploaded_tensor import Upload
from app.tensors.dtypes import DTYPES, DType
from app.tensors.shape_limits import Limits
from app.tensors.tensor_name import check_name, check_new_name

logger = logging.getLogger("gathernd")
_SHORTAGE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process short of descriptors or memory, which say nothing about the file."""
_LEFTOVERS_INTERVAL_NS: Final = 30 * 10**9


class LocalStore:
    """The store in one folder. The folder is neither read nor written before `open`."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        quota: Quota | None = None,
        token: str | None = None,
        memory: int | None = None,
        processes: int = 1,
    ) -> None:
        """`token` is that of the process group that this process joins, None for the first process, which claims it.

        `memory` is how many bytes of contents the system's cache can hold, None where that is not known;
        `processes` how many processes serve the store.
        """
        self.folder = folder
        self.limits = limits
        self.quota = quota or Quota()
        self._token = token
        self._processes = processes
        self._memory = memory
        self._tensor_folder = folder / "tensors"
        self._log_folder = folder / "logs"
        self._upload_folder = folder / "incoming"
        self._snapshot_folder = folder / download_snapshots.FOLDER
        self._catalogue = Catalogue(folder / FILE)
        self._reserve = DiskReserve(folder)
        self._scatter_queues = ScatterQueues(self.execute_scatters)
        self._entries: dict[str, CurrentContent] = {}
        self.run_in_background: Callable[[Callable[[], None]], None] = _run_now
        """Runs a checkpoint once the scatters before it are answered; the service sets it to hand that to a thread."""
        self._group: ProcessGroup | None = None
        self._state: memoryview = memoryview(bytes(8)).cast("Q")
        self._index: CatalogueCache
        self._keys: IdempotencyKeys
        self._replayed_logs: ReplayedLogs
        self._checkpoints: Checkpoints
        self._scatter_executor: ScatterExecutor
        self._uploads: UploadFolder
        self._quota_check: QuotaCheck
        self._orphans: OrphanedFiles

    @property
    def group(self) -> ProcessGroup:
        """The process group that owns the folder, which this process has joined."""
        if self._group is None:
            raise RuntimeError("the store is not open")
        return self._group

    def open(self) -> None:
        """Claim the folder, and repair what a crash has left, or join the process group that owns it.

        Raises StoreRefused and OSError.
        """
        if self._group is not None:
            return
        check_folder(self.folder)
        check_processor(self._processes)
        self.folder.mkdir(parents=True, exist_ok=True)
        layout_migrations.version_of(self.folder)
        group = ProcessGroup(self.folder, self._token)
        try:
            if group.owner:
                layout_migrations.prepare(self.folder)
                for folder in (self._tensor_folder, self._log_folder, self._upload_folder, self._snapshot_folder):
                    folder.mkdir(exist_ok=True)
                # SQLite does not always tell a full disk from other errors.
                self._reserve.retry_with(self._catalogue.check, any_error=True)
                self._catalogue.preallocate_wal()
            self._join(group)
            if group.owner:
                self._recover()
                self._reserve.fill()
        except BaseException:
            self._catalogue.close()
            group.close()
            raise
        self._group = group
        # A mapping takes a descriptor; the soft limit is often 1024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def _join(self, group: ProcessGroup) -> None:
        self._state = group.state
        self._index = CatalogueCache(self._catalogue, group, self._drop_mapping)
        self._keys = IdempotencyKeys(self._catalogue, self._index.change, group.state, self.quota.keys)
        self._replayed_logs = ReplayedLogs(self._tensor_folder, self._log_folder, self._keys)
        self._checkpoints = Checkpoints(group, self._index, self._replayed_logs, self._keys, self._index.change)
        self._scatter_executor = ScatterExecutor(self._keys, self._checkpoints)
        self._uploads = UploadFolder(self._upload_folder, group)
        self._quota_check = QuotaCheck(self.quota, self._index, self._uploads)
        self._orphans = OrphanedFiles(self._tensor_folder, self._log_folder, self._index)
        if group.owner:
            self._state[StateWord.GENERATION] |= 1  # left by an earlier group; `catch_up` sets it right
            self._keys.clock.start(self._catalogue.facts())
            self._state[StateWord.LEFTOVERS_REMOVED] = self._keys.clock.now()
        self._index.catch_up()

    def close(self) -> None:
        """Leave the group. Contents that are being read stay mapped until they have been."""
        if self._group is not None:
            self._entries.clear()
            try:
                self._save_clock()
                self._catalogue.close()
                self._reserve.fill()  # in the room of SQLite's log, which goes with its last connection
            finally:
                self._group.close()
                self._group = None

    def _save_clock(self) -> None:
        # If it cannot be saved, keys live longer.
        with suppress(OSError), self._index.change() as transaction:
            transaction.set_facts(self._keys.clock.facts())

    # Lookups

    def get(self, name: str) -> Resident | None:
        """The tensor of this name as it is now, or None. Raises tensor_damaged."""
        if self._state[0] != self._index.generation:
            self._index.catch_up()
        entry = self._entries.get(name)
        if entry is None:
            entry = self._load(name)
            if entry is None:
                return None
        entry.resident = resident = entry.content.resident(entry.resident)
        return resident

    def content(self, name: str) -> MappedContent:
        """The mapped content of this name. Raises tensor_not_found and tensor_damaged."""
        check_name(name)
        self._index.catch_up()
        entry = self._entries.get(name) or self._load(name)
        if entry is None:
            raise not_found(name)
        entry.content.resident()
        return entry.content

    def snapshot(self, content: MappedContent) -> Snapshot:
        """The content as it is now, for a reader that scatters do not wait for; to be closed.

        Raises tensor_damaged, overloaded and insufficient_storage.
        """
        with storage_errors():
            download_snapshots.remove_abandoned(self._snapshot_folder)
            with content.exclude_writers():
                return Snapshot(content, self._snapshot_folder)

    def _load(self, name: str) -> CurrentContent | None:
        """Map the content of `name`. Raises tensor_damaged."""
        while True:
            row = self._index.find(name)
            if row is None:
                return None
            try:
                content = MappedContent(self._path(row, name), row, partial(self._exclude_writers, row), self._memory)
            except OSError as error:
                if error.errno in _SHORTAGE_ERRNOS and self._entries:
                    self._entries.clear()
                elif self._index.find(name) is row:
                    raise unreadable(name, error) from None
                continue
            entry = self._entries[name] = CurrentContent(content)
            if self._index.is_current(row, name):
                break
            self._entries.pop(name, None)
        if row.prefault or row.lock:
            Thread(target=content.populate, name="prefault", daemon=True).start()
        return entry

    def _path(self, row: Row, name: str) -> Path:
        if not row.dtype:
            raise damaged(name, "its file could not be read")
        return self._tensor_folder / row.file

    @contextmanager
    def _exclude_writers(self, row: Row) -> Iterator[None]:
        with self.group.locks.tensor(row.name):
            if self._index.find(row.name) is row:
                # Finishes the scatter of a process that died: readers would wait for it in vain.
                with suppress(OSError), self._replayed_logs.open(row):
                    pass
            yield

    def _drop_mapping(self, name: str) -> None:
        self._entries.pop(name, None)

    def sweep(self) -> None:
        """Unmap contents that were replaced or removed, so that the disk gets their space back. Cheap if none were."""
        self._index.catch_up()

    def remove_leftovers(self, *, at_once: bool = False) -> None:
        """Remove what processes that died have left: every 30 s, in one process of the group. Raises OSError."""
        now = self._keys.clock.now()
        if at_once or now - self._state[StateWord.LEFTOVERS_REMOVED] > _LEFTOVERS_INTERVAL_NS:
            self._state[StateWord.LEFTOVERS_REMOVED] = now
            self._uploads.remove_abandoned()
            self._orphans.remove_all()
            self._reserve.fill()
            if self._state[StateWord.KEYS]:
                self._keys.remove_expired()

    # Metadata

    def names(self) -> list[str]:
        """The names of all tensors, sorted; without damaged ones of format 1, whose names are not known."""
        return list(self._index.names())

    def metadata(self, name: str) -> Metadata:
        """What is known of a tensor. Raises invalid_field, tensor_not_found and tensor_damaged."""
        check_name(name)
        while True:
            row = self._index.find(name)
            if row is None:
                raise not_found(name, self._index.names())
            try:
                description, page = read_first_page(self._path(row, name))
            except (BadFile, OSError) as problem:
                if self._index.find(name) is not row:
                    continue  # replaced meanwhile
                if isinstance(problem, OSError):
                    raise unreadable(name, problem) from None
                raise damaged(name, str(problem)) from None
            metadata = _metadata(row, page)
            if metadata.damaged or description.id != row.content:
                raise damaged(name, "its checksums or its log do not match")
            return metadata

    def etag(self, name: str) -> str | None:
        """The ETag of a tensor, also of one whose content is damaged; None where there is none."""
        row = self._index.find(name)
        return None if row is None else self._describe(row).etag

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """At most `limit` tensors in the order of their names, those after `after`; the last name if more follow."""
        rows, following = self._index.page(limit, after)
        return [self._describe(row) for row in rows], following

    def _describe(self, row: Row) -> Metadata:
        """The metadata of a tensor, damaged or not. Raises OSError for want of descriptors or memory."""
        try:
            description, page = read_first_page(self._tensor_folder / row.file)
            return _metadata(row, page) if description.id == row.content else damaged_metadata(row)
        except (BadFile, OSError) as problem:
            # Want of descriptors or memory says nothing about this file; other errors mean that it is damaged.
            if isinstance(problem, OSError) and problem.errno in _SHORTAGE_ERRNOS:
                raise
            return damaged_metadata(row)

    # Changes

    def upload(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        *,
        name: str | None = None,
        swap: bool = False,
        fortran: bool = False,
        prefault: bool = False,
        lock: bool = False,
    ) -> Upload:
        """An upload under way; see `Upload`. The quota counts it from now on, in the place of tensor `name`.

        Raises invalid_field, limit_exceeded and insufficient_storage.
        """
        if name is not None:
            check_new_name(name)
        upload = Upload(
            self._upload_folder, dtype, shape, self.limits, swap=swap, fortran=fortran, prefault=prefault, lock=lock
        )
        if self.quota.total is not None and upload.expected is not None and upload.expected > self.quota.total:
            raise over_quota("bytes", self.quota.total)
        with storage_errors(upload.abandon):
            free = os.statvfs(self._upload_folder)
            if upload.expected is not None and upload.expected > free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with self.group.locks.uploads():
                if name is not None:
                    self._quota_check.check_count(self._index.find(name))
                self._quota_check.check_bytes(name, upload.reserved)
                upload.open(partial(self._quota_check.check_bytes, name, 0))
        return upload

    def put(self, name: str, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Make a finished upload the content of `name`, durably: its metadata, and whether the name is new.

        Raises invalid_field, precondition_failed and insufficient_storage, and abandons the upload then.
        """
        with storage_errors(upload.abandon):
            check_new_name(name)
            now = time.time_ns()
            description = upload.describe(name)
            upload.seal(description, 0, now)
            with self.group.locks.tensor(name):
                old = self._index.find(name)
                if conditions != ALWAYS:
                    conditions.check(None if old is None else self._describe(old).etag)
                row = _row(description, upload.id, now if old is None else old.created, now)
                self._commit(upload, row, old)
        return metadata_of(row, 0, now), old is None

    def _commit(self, upload: Upload, row: Row, old: Row | None, more: Sequence[AnsweredKey] = ()) -> None:
        """Put a sealed upload in the place of `old`, durably; keeps the Idempotency-Keys of `old`'s log, and `more`."""
        keys = [*more] if old is None else self._replayed_logs.unexpired_keys(old, more)
        path = self._tensor_folder / row.file
        with self._index.change() as transaction:
            self._quota_check.check_count(old)
            self._quota_check.check_bytes(row.name, row.file_size, upload.id)
            try:
                disk_writes.rename(upload.path, path)
                disk_writes.fsync_folder(self._tensor_folder)
                transaction.put(row)
                if old is not None and old.name != row.name:
                    transaction.remove(old.name)
                self._keys.store(transaction, keys)
            except BaseException:
                with suppress(OSError):
                    disk_writes.unlink(path)
                raise
            # A refused commit leaves the file, since a crash may yet make the commit durable: see `remove_leftovers`.
        upload.close()
        self._index.catch_up()
        if old is not None:
            self._remove_files(old, row.content)

    def _remove_files(self, row: Row, content: str | None = None) -> None:
        """Remove the file of a replaced or removed content, and its log unless the new content has the same id."""
        if row.content != content:
            self._replayed_logs.remove(row.content)
        # What cannot be removed now is removed later: see `remove_leftovers`.
        with suppress(OSError):
            disk_writes.unlink(self._tensor_folder / row.file)

    def delete(self, name: str, conditions: Conditions = ALWAYS) -> None:
        """Remove a tensor, durably.

        Raises invalid_field, tensor_not_found, precondition_failed and insufficient_storage.
        """
        check_name(name)
        with storage_errors(), self.group.locks.tensor(name):
            row = self._index.find(name)
            if row is None:
                raise not_found(name)
            if conditions != ALWAYS:
                conditions.check(self._describe(row).etag)
            self._reserve.retry_with(partial(self._remove, row, self._replayed_logs.unexpired_keys(row)))
            # This process unmaps it now, others at their next sweep; then the disk gets the space back.
            self._index.catch_up()
            self._remove_files(row)
        self._reserve.refill()

    def _remove(self, row: Row, keys: Sequence[AnsweredKey]) -> None:
        with self._index.change() as transaction:
            transaction.remove(row.name)
            self._keys.store(transaction, keys)

    def find_answer(self, name: str, key: str, digest: str) -> str | None:
        """The ETag that was answered to a scatter with this Idempotency-Key, None if there was none.

        Raises invalid_field (also where the key came with another request), tensor_damaged and insufficient_storage.
        """
        check_name(name)
        with storage_errors(), self.group.locks.tensor(name):
            answered = self._keys.find_etag(name, None, key, digest)
            row = self._index.find(name)
            if answered is not None or row is None:
                return answered
            with self._replayed_logs.open(row) as writable:
                return self._keys.find_etag(name, writable.log, key, digest)

    def scatter(self, name: str, change: ScatterChange, conditions: Conditions = ALWAYS) -> str:
        """Change a tensor in place, durably and at once for every reader; the new ETag. Shares its fsync with others.

        Raises ContentReplaced, tensor_not_found, tensor_damaged, precondition_failed, invalid_field and
        insufficient_storage.
        """
        check_name(name)
        with storage_errors():
            return self._scatter_queues.run(name, PendingScatter(change, conditions))

    def queue_scatter(
        self, name: str, change: ScatterChange, conditions: Conditions, wake: Callable[[], None]
    ) -> QueuedScatter:
        """Queue a scatter and return at once; `wake` is called when `complete_scatter` is to be called."""
        check_name(name)
        return self._scatter_queues.enqueue(name, PendingScatter(change, conditions), wake)

    def complete_scatter(self, queued: QueuedScatter) -> str:
        """The new ETag of a queued scatter; raises what `scatter` raises. Blocks unless it is done."""
        with storage_errors():
            return self._scatter_queues.complete(queued)

    def execute_scatters(self, name: str, take: Take) -> Callable[[], None] | None:
        """Carry out and finish the scatters of one tensor that `take` gives; work left for after the answers.

        Raises the errors that hold for all of them.
        """
        with self.group.locks.tensor(name):
            row = self._index.find(name)
            if row is None:
                raise not_found(name)
            with self._replayed_logs.open(row) as writable:
                if row.dtype != "string":
                    self._scatter_executor.execute(writable, take(MAX_BATCH))
                    checkpoint = self._checkpoints.prepare_if_due(row, writable)
                    return None if checkpoint is None else partial(self.run_in_background, checkpoint)
                (pending,) = take(1)
                answered = self._scatter_executor.check(writable, pending)
                pending.finish(answered or self._scatter_strings(row, writable, pending.change))
                return None

    def _scatter_strings(self, row: Row, writable: WritableTensor, change: ScatterChange) -> str:
        """A scatter of strings, which differ in length: writes a new file of the content."""
        sequence = (writable.version >> 1) + 1
        upload = self.upload(DTYPES[row.dtype], row.shape, name=row.name, prefault=row.prefault, lock=row.lock)
        with storage_errors(upload.abandon):
            for piece in replaced_strings(writable, change):
                upload.write(piece)
            upload.finish()
            now = time.time_ns()
            described = replace(upload.describe(row.name), id=row.content, sha256=row.sha256)
            etag = described.etag(sequence)
            answer = AnsweredKey(row.name, change.key or "", change.digest, etag, self._keys.clock.now())
            upload.seal(described, sequence, now)
            new = _row(described, upload.id, row.created, now)
            self._commit(upload, new, row, [answer] if change.key is not None else [])
        return etag

    def usage(self) -> tuple[int, int]:
        """How many tensors there are, and the bytes of their files."""
        self._index.catch_up()
        return len(self._index), self._index.total

    # Checks

    def verify(self, stop: Event, pause_ratio: float = 1.0) -> None:
        """Compare every content with its checksums, once in the life of the process group, and mark damaged ones.

        Pauses `pause_ratio` times as long as it works. Scatters and replacements may come meanwhile.
        """
        verifier = Verifier(self.group, self._replayed_logs, self._index, self._tensor_folder, self._log_folder)
        verifier.run(stop, pause_ratio)

    # Start-up

    def _recover(self) -> None:
        for name in file_names(self._upload_folder):
            remove_or_warn(self._upload_folder / name)
        download_snapshots.remove_abandoned(self._snapshot_folder, everything=True)
        logs = set(file_names(self._log_folder))
        for row in self._index.rows():
            if row.content in logs:
                try:
                    self._checkpoints.recover(row)
                except GatherError as problem:
                    logger.error("%s", problem.detail)
                except OSError as error:
                    # The log stays, and the next scatter applies it.
                    logger.error("the log of %s could not be applied: %s", row.name, error.strerror)
        self._orphans.remove_all()
        self._save_clock()


def _row(description: Description, file: str, created: int, modified: int) -> Row:
    return Row(
        description.name, description.id, file, description.dtype, description.shape, description.size,
        description.file_size, description.sha256, created, modified, description.prefault, description.lock,
    )  # fmt: skip


def _metadata(row: Row, page: bytes) -> Metadata:
    return metadata_of(
        row, page_version(page), int.from_bytes(page[8 * HeaderWord.MODIFIED : 8 * HeaderWord.MODIFIED + 8], "little")
    )


def _run_now(work: Callable[[], None]) -> None:
    work()

"""The store on the local disk: open it, and upload, replace, change and remove tensors. The code that finds and reads
tensors is in `stored_tensors`.

Each upload under a name becomes the name's next version; `publish_and_remove_versions` decides which older versions are
kept. A reference is the name of a tensor (for its current version, which has the highest number), `NAME@7`, or an
alias.

All methods except `get` do blocking disk I/O: call them on a worker thread. Any number of threads and processes may
call them concurrently.

    format              the version of this layout: see `store_format`
    catalogue.sqlite    the list of tensors, Idempotency-Keys, import records: see `catalogue`
    tensors/            one file for each version: see `tensor_file`; two more for its keys: see `key_files`
    logs/               a redo log for each version changed by scatters: see `scatter_log`
    incoming/           uploads in progress: see `write_uploaded_tensor`
    imports/            a file for each import in progress: see `import_records`
    snapshots/          pages saved for downloads while scatters change a version's content: see `download_snapshots`
    lock members state  see `directory_lock`
    locks/              see `store_locks`
    shard/              only on a shard of a cluster: see `app.cluster.shard.shard_folder`

Each method performs one whole operation on a tensor, from the checks to the commit, so the class refers to most of
these parts.
"""

from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from app.catalogue.aliases import AliasMove
from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.records import Alias
from app.errors import GatherError
from app.store import import_records
from app.store.catalogue import store_format
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_database import FILE, Catalogue
from app.store.catalogue.catalogue_rows import Row
from app.store.files import download_snapshots
from app.store.files.file_system_check import check_folder, check_layout, check_processor
from app.store.files.key_files import repair_index
from app.store.files.keyed_upload import KeyedUpload
from app.store.files.remove_leftovers import OrphanedFiles, UploadFolder, file_names, remove_or_warn
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.idempotency import IdempotencyKeys
from app.store.import_records import ImportRecords
from app.store.maintenance.check_content import verify
from app.store.processes.directory_lock import ProcessGroup, StateWord, session_of
from app.store.publish_and_remove_versions import Quota, QuotaCheck, VersionChanges
from app.store.scatters.content_changes import ContentChanges
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.pending_scatter import (
    KeyedChange,
    PendingScatter,
    ScatterChange,
    Scattered,
    ScatterQueues,
    Take,
)
from app.store.scatters.replicated_contents import ReplicatedContents
from app.store.scatters.scatter_checkpoints import Checkpoints
from app.store.scatters.scatter_execution import ScatterExecutor
from app.store.scatters.scatter_log import FULL
from app.store.scatters.table_growth import TableGrowth
from app.store.store_errors import has_keys, not_found, storage_errors
from app.store.stored_tensors import StoredTensors
from app.store.tensor_metadata import Metadata, metadata_of
from app.tensors.dtypes import DTYPES
from app.tensors.keys_spec import KeysSpec
from app.tensors.shape_limits import Limits
from app.tensors.tensor_name import check_new_name, check_reference

logger = logging.getLogger("gathernd")
_LEFTOVERS_INTERVAL_NS: Final = 30 * 10**9


class LocalStore(StoredTensors):
    """The store in one folder, a `TensorStore`. The folder is not accessed before `open`."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        quota: Quota | None = None,
        token: str | None = None,
        memory: int | None = None,
        processes: int = 1,
        keep_versions: int = 1,
    ) -> None:
        """Set up the store without opening it. `token` is the token of the process group to join.

        If `token` is None, this process is the first one and claims the folder. `memory` is the number of bytes that
        the page cache can hold, or None if unknown. `processes` is the number of processes that serve the store.
        `keep_versions` is the number of versions of a tensor to keep after an upload, including the new one. An upload
        can set a different number.
        """
        super().__init__(folder, memory)
        self.limits = limits
        self.quota = quota or Quota()
        self._token = token
        self._processes = processes
        self._keep_versions = keep_versions
        self._log_folder = folder / "logs"
        self._upload_folder = folder / "incoming"
        self._import_folder = folder / import_records.FOLDER
        self._catalogue = Catalogue(folder / FILE)
        self._scatter_queues = ScatterQueues(self.execute_scatters)
        self.run_in_background: Callable[[Callable[[], None]], None] = lambda work: work()
        """Run a checkpoint after the scatters before it have received their responses. The service sets this to use a
        thread.
        """
        self._keys: IdempotencyKeys
        self._checkpoints: Checkpoints
        self._scatter_executor: ScatterExecutor
        self.replicated: ReplicatedContents
        """The contents that are replicated on other machines."""
        self._uploads: UploadFolder
        self._quota_check: QuotaCheck
        self._orphans: OrphanedFiles
        self.imports: ImportRecords
        self._version_changes: VersionChanges
        self._content_changes: ContentChanges

    def open(self) -> None:
        """Claim the folder and clean up after any crash, or join the process group that owns the folder.

        Raises StoreRefused and OSError.
        """
        if self._group is not None:
            return
        check_folder(self.folder)
        check_processor(self._processes)
        self.folder.mkdir(parents=True, exist_ok=True)
        store_format.version_of(self.folder)
        check_layout(self.folder)
        group = ProcessGroup(self.folder, self._token)
        try:
            if group.owner:
                store_format.prepare(self.folder)
                for folder in (
                    self._tensor_folder, self._log_folder, self._upload_folder, self._snapshot_folder,
                    self._import_folder,
                ):  # fmt: skip
                    folder.mkdir(exist_ok=True)
                self._catalogue.check()
                self._catalogue.preallocate_wal()
            with self._catalogue.refusing_damage():
                self._use_group(group)
            if group.owner:
                self._recover(group)
        except BaseException:
            self._catalogue.close()
            group.close()
            raise
        self._group = group
        # Each mapping requires a file descriptor, and the soft limit is often 1024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def _use_group(self, group: ProcessGroup) -> None:
        self._state = group.state
        self._index = CatalogueCache(self._catalogue, group, self._unmap)
        self._keys = IdempotencyKeys(self._catalogue, self._index.change, group.state, self.quota.keys)
        self._replayed_logs = ReplayedLogs(self._tensor_folder, self._log_folder, partial(session_of, group.token))
        self._checkpoints = Checkpoints(group, self._index, self._replayed_logs, self._keys)
        self._scatter_executor = ScatterExecutor(self._keys, self._checkpoints)
        self._uploads = UploadFolder(self._upload_folder, group.locks)
        self._quota_check = QuotaCheck(self.quota, self._index, self._uploads)
        self._orphans = OrphanedFiles(self._tensor_folder, self._log_folder, self._index)
        self.imports = ImportRecords(
            self._import_folder, group.locks, self._catalogue, self._index.change, self._find_content
        )
        self._version_changes = VersionChanges(
            group,
            self._index,
            self._replayed_logs,
            self._keys,
            self._quota_check,
            self._keep_versions,
            lambda row: self._describe(row).etag,
        )
        growth = TableGrowth(
            self._index, self._replayed_logs, self._keys, self._version_changes, self._upload_folder, self.limits,
            self._checkpoints.empty_log,
        )  # fmt: skip
        self._checkpoints.renew = growth.renew
        self.replicated = ReplicatedContents(
            self._lock_existing, group.locks, self._index, self._replayed_logs, self._keys, self._checkpoints,
            self._scatter_executor, self._version_changes, growth, self._run_later,
        )  # fmt: skip
        self._content_changes = ContentChanges(
            self._lock_existing, self._index, self._replayed_logs, self._keys, self._checkpoints,
            self._scatter_executor, self._version_changes, growth, self.replicated, self._upload_folder, self.limits,
        )  # fmt: skip
        if group.owner:
            # the word may be left over from an earlier group; `refresh` repairs it
            self._state[StateWord.GENERATION] |= 1
            self._keys.clock.start(self._catalogue.facts())
            self._state[StateWord.LEFTOVERS_REMOVED] = self._keys.clock.now()
        self._index.refresh()

    def _run_later(self, work: Callable[[], None]) -> None:
        self.run_in_background(work)

    def close(self) -> None:
        """Leave the group. Versions in use stay mapped until their readers finish."""
        if self._group is not None:
            self._contents.clear()
            try:
                self._save_clock()
                self._catalogue.close()
            finally:
                self._group.close()
                self._group = None

    def _save_clock(self) -> None:
        # If this fails, Idempotency-Keys live longer than intended.
        with suppress(OSError), self._index.change() as transaction:
            transaction.set_facts(self._keys.clock.facts())

    def remove_leftovers(self, *, at_once: bool = False) -> None:
        """Remove expired keys and whatever dead processes have left. Runs every 30 s, in one process. Raises OSError.

        This covers files, unfinished import records, and Idempotency-Keys in the catalogue. If `at_once` is true, it
        runs even if the 30 s have not passed.
        """
        now = self._keys.clock.now()
        if at_once or now - self._state[StateWord.LEFTOVERS_REMOVED] > _LEFTOVERS_INTERVAL_NS:
            self._state[StateWord.LEFTOVERS_REMOVED] = now
            self._uploads.remove_abandoned()
            self._orphans.remove_all()
            self.imports.remove_leftovers()
            if self._state[StateWord.KEYS]:
                self._keys.remove_expired()

    # Aliases

    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        return self._index.alias_page(limit, after)

    def put_aliases(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        return self._version_changes.put_aliases(moves)

    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        self._version_changes.delete_alias(alias, conditions)

    # Changes

    def upload(self, spec: UploadSpec) -> Upload:
        check_new_name(spec.name)
        of = Upload if spec.keys is None else KeyedUpload
        upload = of(self._upload_folder, spec, self.limits)
        self._version_changes.begin(upload)
        return upload

    def upload_keys(self, name: str, keys: KeysSpec, *, keep: int | None = None, note: str = "") -> Upload:
        content = self.content(name)
        if content.keys is not None:
            raise has_keys(name)
        about = content.description
        spec = UploadSpec(
            name, DTYPES[about.dtype], about.shape, prefault=about.prefault, lock=about.lock, keep=keep, note=note,
            keys=keys,
        )  # fmt: skip
        upload = KeyedUpload(self._upload_folder, spec, self.limits, partial(self.read_all, content))
        self._version_changes.begin(upload)
        return upload

    def check_room(self, size: int) -> None:
        """Raise insufficient_storage unless a file of `size` bytes fits in addition to the uploads in progress."""
        self._quota_check.check_bytes((), size)
        if shutil.disk_usage(self.folder).free < size:
            raise GatherError("insufficient_storage", "the disk of the store has no room")

    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        row, created = self._version_changes.commit(upload, conditions)
        return metadata_of(row, self.version_numbers(row.name)), created

    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        check_reference(reference)
        self._version_changes.remove(reference, conditions)

    @contextmanager
    def _lock_version(self, reference: str) -> Iterator[Row | None]:
        """Lock a reference's tensor and yield the version that the reference refers to, or None.

        The version stays valid inside the context.
        """
        while True:
            row = self._index.find(reference)
            with self.group.locks.tensor(reference if row is None else row.name):
                if self._index.find(reference) is row:
                    yield row
                    return

    @contextmanager
    def _lock_existing(self, reference: str) -> Iterator[Row]:
        """Lock a reference's tensor and yield the version that the reference refers to. Raises tensor_not_found."""
        with self._lock_version(reference) as row:
            if row is None:
                raise not_found(reference, self)
            yield row

    def find_answer(self, reference: str, key: str, digest: str) -> Scattered | None:
        """Return the response to an earlier scatter with this Idempotency-Key, or None.

        Raises invalid_field (also if the key was sent with a different request), tensor_damaged and
        insufficient_storage.
        """
        check_reference(reference)
        with storage_errors(), self._lock_version(reference) as row:
            answered = self._keys.find_answer(reference, None, key, digest)
            if answered is not None or row is None:
                return answered
            with self._replayed_logs.open(row) as writable:
                return self._keys.find_answer(reference, writable.log, key, digest)

    def queue_scatter(
        self,
        reference: str,
        change: ScatterChange | KeyedChange,
        conditions: Conditions,
        wake: Callable[[], None],
    ) -> PendingScatter:
        """Queue a scatter, an upsert or a removal, and return immediately.

        `wake` is called when it is time to call `complete_scatter`. The change is made in place and durably, becomes
        visible to all readers at the same moment, and shares its fsync with other changes.
        """
        check_reference(reference)
        pending = PendingScatter(change, conditions, wake)
        self._scatter_queues.enqueue(reference, pending)
        return pending

    def complete_scatter(self, reference: str, pending: PendingScatter) -> Scattered:
        """Return the result of a queued scatter. Blocks unless it is already done.

        Raises ContentReplaced, tensor_not_found, tensor_damaged, precondition_failed, invalid_field and
        insufficient_storage.
        """
        with storage_errors():
            return self._scatter_queues.complete(reference, pending)

    def execute_scatters(self, reference: str, take: Take) -> Callable[[], None] | None:
        """Execute and finish the changes that `take` returns, all of them queued for one reference.

        Returns work to run after the callers have received their responses, or None. Raises only errors that apply to
        the whole batch.
        """
        checkpoint = self._content_changes.execute(reference, take)
        return None if checkpoint is None else partial(self.run_in_background, checkpoint)

    def _find_content(self, name: str, content: str) -> Metadata | None:
        """Return a version's metadata as of its creation, or None if the version no longer exists."""
        for row in self._index.versions(name):
            if row.content == content:
                return metadata_of(row, self.version_numbers(name))
        return None

    # Checks

    def verify(self, stop: Event, pause_ratio: float = 1.0) -> None:
        """Check every version against its checksums and mark damaged ones, once per lifetime of the process group.

        Alternates between working and pausing; each pause is `pause_ratio` times as long as the work before it.
        Scatters and replacements may run at the same time.
        """
        verify(self.folder, self.group, self._catalogue, self._index, self._replayed_logs, stop, pause_ratio)

    # Startup

    def _recover(self, group: ProcessGroup) -> None:
        for name in file_names(self._upload_folder):
            remove_or_warn(self._upload_folder / name)
        download_snapshots.remove_abandoned(self._snapshot_folder)
        logs = {name.removesuffix(FULL) for name in file_names(self._log_folder)}
        for row in self._index.rows():
            if row.content in logs:
                try:
                    with group.locks.tensor(row.name):  # a backup may be running
                        self._checkpoints.recover(row)
                except GatherError as problem:
                    logger.error("%s", problem.detail)
                except OSError as error:
                    # The log stays, and the next scatter applies it.
                    logger.error("the log of %s could not be applied: %s", row.reference, error.strerror)
            repair_index(self._tensor_folder, self._upload_folder, row)
        self._orphans.remove_all()
        self.imports.remove_leftovers()
        self._save_clock()

"""Find and read the tensors of an open store: lookups, downloads, metadata and lists.

A lookup of an unchanged tensor costs two comparisons with values in shared memory and one comparison of file sizes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

from app.catalogue.records import NameRecord
from app.catalogue.versions import check_new_version
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files import download_snapshots
from app.store.files.download_snapshots import Snapshot
from app.store.files.key_files import check_key_file
from app.store.files.mapped_tensor import CurrentContent, MappedContent
from app.store.files.tensor_file import BadFile
from app.store.processes.directory_lock import ProcessGroup
from app.store.scatters.log_replay import ReplayedLogs
from app.store.store_errors import damaged, not_found, storage_errors, unreadable
from app.store.store_interface import Resident
from app.store.tensor_metadata import Metadata, damaged_metadata, metadata_of, read_first_page
from app.store.tensor_store_interface import TensorStore
from app.tensors.tensor_name import check_reference, split_reference

_SHORTAGE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Values of errno for a process that is short of descriptors or memory. They say nothing about the file."""
_READ_AT_ONCE: Final = 1 << 22


class StoredTensors(TensorStore):
    """The read operations of a store (see `TensorStore`). `LocalStore` opens the store and adds write operations."""

    def __init__(self, folder: Path, memory: int | None) -> None:
        """Set up the lookups. `memory` is the number of bytes that the page cache can hold, or None if unknown."""
        self.folder = folder
        self._memory = memory
        self._tensor_folder = folder / "tensors"
        self._snapshot_folder = folder / download_snapshots.FOLDER
        self._contents: dict[str, CurrentContent] = {}
        """The mapped contents, by file name."""
        self._group: ProcessGroup | None = None
        self._state: memoryview = memoryview(bytes(8)).cast("Q")
        self._index: CatalogueCache
        self._replayed_logs: ReplayedLogs

    @property
    def group(self) -> ProcessGroup:
        """The process group that owns the folder. This process has joined it."""
        if self._group is None:
            raise RuntimeError("the store is not open")
        return self._group

    # Lookups

    def get(self, reference: str) -> Resident | None:
        row = self._index.find(reference)
        entry = None if row is None else self._contents.get(row.file)
        if entry is None:
            return self.get_all((reference,))[0]
        entry.resident = resident = entry.content.resident(entry.resident)
        return resident

    def get_all(self, references: Sequence[str]) -> list[Resident | None]:
        while True:
            found: list[Resident | None] = []
            for row in self._index.find_all(references):
                if row is None:
                    return [*found, None]
                entry = self._contents.get(row.file) or self._map(row)
                if entry is None:
                    break
                entry.resident = resident = entry.content.resident(entry.resident)
                found.append(resident)
            else:
                return found

    def content(self, reference: str) -> MappedContent:
        """Return the mapped content of the version that a reference refers to.

        Raises invalid_field, tensor_not_found and tensor_damaged.
        """
        check_reference(reference)
        while True:
            row = self._index.find(reference)
            if row is None:
                raise not_found(reference, self)
            entry = self._contents.get(row.file) or self._map(row)
            if entry is not None:
                entry.content.resident()
                return entry.content

    def snapshot(self, content: MappedContent) -> Snapshot:
        """Take a snapshot of the content, for a reader that must not delay scatters.

        The caller must close it after use.

        Raises tensor_damaged, overloaded and insufficient_storage.
        """
        with storage_errors():
            download_snapshots.remove_abandoned(self._snapshot_folder)
            with content.exclude_writers():
                return Snapshot(content, self._snapshot_folder)

    def read_all(self, content: MappedContent) -> Iterator[bytes]:
        """Yield the items of `content` in pieces, all as of one moment. May raise everything that `snapshot` raises."""
        with closing(self.snapshot(content)) as snapshot:
            for begin in range(0, content.description.size, _READ_AT_ONCE):
                yield snapshot.read(begin, min(begin + _READ_AT_ONCE, content.description.size))

    def _map(self, row: Row) -> CurrentContent | None:
        """Map the content of a version, or return None if the version has been removed concurrently.

        Raises tensor_damaged.
        """
        path = self._tensor_folder / row.file
        while True:
            try:
                content = MappedContent(path, row, partial(self._exclude_writers, row), self._memory)
                break
            except OSError as error:
                if error.errno in _SHORTAGE_ERRNOS and self._contents:
                    self._contents.clear()
                elif self._index.find(row.reference) is row:
                    raise unreadable(row.name, error) from None
                else:
                    return None
        entry = self._contents[row.file] = CurrentContent(content)
        if self._index.find(row.reference) is not row:
            self._unmap(row.file)
        elif row.prefault or row.lock:
            Thread(target=content.populate, name="prefault", daemon=True).start()
        return entry

    @contextmanager
    def _exclude_writers(self, row: Row) -> Iterator[None]:
        with self.group.locks.tensor(row.name):
            if self._index.find(row.reference) == row:
                # Finish the scatter of a process that died. Otherwise, readers would wait for it forever.
                with suppress(OSError), self._replayed_logs.open(row):
                    pass
            yield

    def _unmap(self, file: str) -> None:
        self._contents.pop(file, None)

    def sweep(self) -> None:
        """Unmap versions that have been replaced or removed, to free their disk space. Cheap if there are none."""
        self._index.refresh()

    # Metadata

    def names(self) -> list[str]:
        return self._index.names()

    def alias_names(self) -> list[str]:
        return self._index.alias_names()

    def record_of(self, name: str) -> NameRecord[Row]:
        return self._index.record_of(name)

    def lock_name(self, reference: str) -> str:
        row = self._index.find(reference)
        return split_reference(reference)[0] if row is None else row.name

    def resolve(self, reference: str) -> str | None:
        row = self._index.find(reference)
        return None if row is None else row.reference

    def dtype_of(self, reference: str) -> str | None:
        row = self._index.find(reference)
        return None if row is None else row.dtype

    def metadata(self, reference: str) -> Metadata:
        check_reference(reference)
        while True:
            row = self._index.find(reference)
            if row is None:
                raise not_found(reference, self, tell_names=True)
            try:
                metadata = self._read_metadata(row)
            except (BadFile, OSError) as problem:
                if self._index.find(reference) is not row:
                    continue  # replaced concurrently
                if isinstance(problem, OSError):
                    raise unreadable(reference, problem) from None
                raise damaged(reference, str(problem)) from None
            if metadata.damaged:
                raise damaged(reference, "its checksums or its log do not match")
            return metadata

    def etag_to_replace(self, name: str) -> str | None:
        own = self._index.record_of(name)
        check_new_version(own)
        found = None if own.current is None else self._describe_current(own.current)
        return None if found is None else found.etag

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        rows, following = self._index.page(limit, after)
        return [found for row in rows if (found := self._describe_current(row)) is not None], following

    def older_versions(self, tensor: Metadata) -> list[Metadata]:
        """Return the other kept versions of a tensor, oldest first."""
        others = [row for row in self._index.versions(tensor.name) if row.number != tensor.version]
        described = (self._describe_while(row, partial(self._index.find, row.reference)) for row in others)
        return [found for found in described if found is not None]

    def _describe_current(self, row: Row) -> Metadata | None:
        """Return the metadata of a tensor's current version, last seen as `row`, or None if the tensor is gone."""
        return self._describe_while(row, lambda: self._index.record_of(row.name).current)

    def _describe_while(self, row: Row, now: Callable[[], Row | None]) -> Metadata | None:
        """Return the metadata of a version, damaged or not. Returns None if `now` returns None because the version is
        gone.

        If the version is replaced or its table grows into new files in the meantime, describes the row that `now`
        returns.
        """
        found: Row | None = row
        while found is not None:
            known, metadata = found, self._describe(found)
            if not metadata.damaged:
                return metadata
            found = now()
            if found is known:
                return metadata
        return None

    def _read_metadata(self, row: Row) -> Metadata:
        """Return the metadata of a version, damaged or not. Raises BadFile and OSError if its files cannot be read."""
        versions = self.version_numbers(row.name)
        description, page = read_first_page(self._tensor_folder / row.file)
        check_key_file(self._tensor_folder, row)
        return metadata_of(row, versions, page) if description.id == row.content else damaged_metadata(row, versions)

    def _describe(self, row: Row) -> Metadata:
        """Return the metadata of a version, damaged or not. Raises OSError if descriptors or memory run out."""
        try:
            return self._read_metadata(row)
        except (BadFile, OSError) as problem:
            # A shortage of descriptors or memory says nothing about this file. Other errors mean that the file is
            # damaged.
            if isinstance(problem, OSError) and problem.errno in _SHORTAGE_ERRNOS:
                raise
            return damaged_metadata(row, self.version_numbers(row.name))

    def usage(self) -> tuple[int, int]:
        self._index.refresh()
        return len(self._index), self._index.total

    def version_count(self) -> int:
        self._index.refresh()
        return self._index.version_count

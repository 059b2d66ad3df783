"""Finding and reading the tensors of an open store: lookups, downloads, metadata and lists.

A lookup of an unchanged tensor costs two comparisons with shared memory and one of the file's size.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final
from weakref import WeakValueDictionary

from app.store.aliases import check_no_alias
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files import download_snapshots
from app.store.files.download_snapshots import Snapshot
from app.store.files.mapped_tensor import CurrentContent, MappedContent
from app.store.files.tensor_file import BadFile, HeaderWord, page_version
from app.store.processes.directory_lock import ProcessGroup
from app.store.scatters.log_replay import ReplayedLogs
from app.store.store_errors import damaged, not_found, storage_errors, unreadable
from app.store.store_interface import Resident
from app.store.tensor_metadata import Metadata, damaged_metadata, metadata_of, read_first_page
from app.tensors.tensor_name import check_reference, split_reference

_SHORTAGE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process short of descriptors or memory, which say nothing about the file."""


class StoredTensors:
    """The part of a store that reads; `LocalStore` opens it, and changes what it reads."""

    def __init__(self, folder: Path, memory: int | None) -> None:
        """`memory` is how many bytes of contents the system's cache can hold, None where that is not known."""
        self.folder = folder
        self._memory = memory
        self._tensor_folder = folder / "tensors"
        self._snapshot_folder = folder / download_snapshots.FOLDER
        self._entries: dict[str, CurrentContent] = {}  # by reference
        self._mapped: WeakValueDictionary[str, CurrentContent] = WeakValueDictionary()  # those of `_entries`, by file
        self._group: ProcessGroup | None = None
        self._state: memoryview = memoryview(bytes(8)).cast("Q")
        self._index: CatalogueCache
        self._replayed_logs: ReplayedLogs

    @property
    def group(self) -> ProcessGroup:
        """The process group that owns the folder, which this process has joined."""
        if self._group is None:
            raise RuntimeError("the store is not open")
        return self._group

    # Lookups

    def get(self, reference: str) -> Resident | None:
        """The version of a tensor that a reference names, as it is now, or None. Raises tensor_damaged."""
        if self._state[0] != self._index.generation:
            self._index.catch_up()
        entry = self._entries.get(reference)
        if entry is None:
            entry = self._load(reference)
            if entry is None:
                return None
        entry.resident = resident = entry.content.resident(entry.resident)
        return resident

    def content(self, reference: str) -> MappedContent:
        """The mapped content that a reference names. Raises invalid_field, tensor_not_found and tensor_damaged."""
        check_reference(reference)
        self._index.catch_up()
        entry = self._entries.get(reference) or self._load(reference)
        if entry is None:
            raise not_found(reference, self)
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

    def _load(self, reference: str) -> CurrentContent | None:
        """Map the content that a reference names. Raises tensor_damaged."""
        is_new = False
        while True:
            row = self._index.find(reference)
            if row is None:
                return None
            entry = self._mapped.get(row.file)
            if entry is None:
                try:
                    path = self._tensor_folder / row.file
                    content = MappedContent(path, row, partial(self._exclude_writers, row), self._memory)
                except OSError as error:
                    if error.errno in _SHORTAGE_ERRNOS and self._entries:
                        self._entries.clear()
                    elif self._index.find(reference) is row:
                        raise unreadable(reference, error) from None
                    continue
                entry = self._mapped[row.file] = CurrentContent(content)
                is_new = True
            self._entries[reference] = entry
            if self._index.is_current(row, reference):
                break
            self._entries.pop(reference, None)
        if is_new and (row.prefault or row.lock):
            Thread(target=entry.content.populate, name="prefault", daemon=True).start()
        return entry

    @contextmanager
    def _exclude_writers(self, row: Row) -> Iterator[None]:
        with self.group.locks.tensor(row.name):
            if self._index.find(row.reference) == row:
                # Finishes the scatter of a process that died: readers would wait for it in vain.
                with suppress(OSError), self._replayed_logs.open(row):
                    pass
            yield

    def _drop_mapping(self, reference: str) -> None:
        self._entries.pop(reference, None)

    def sweep(self) -> None:
        """Unmap contents that were replaced or removed, so that the disk gets their space back. Cheap if none were."""
        self._index.catch_up()

    # Metadata

    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return self._index.names()

    def alias_names(self) -> list[str]:
        """The names of all aliases, sorted."""
        return self._index.alias_names()

    def version_numbers(self, name: str) -> list[int]:
        """The numbers of the versions of a tensor that are kept, or of the one that an alias names; else none."""
        alias = self._index.alias(name)
        return [alias.version] if alias is not None else [row.version for row in self._index.versions(name)]

    def lock_name(self, reference: str) -> str:
        """The name by which changes of what a reference names wait for each other: that of its tensor."""
        row = self._index.find(reference)
        return split_reference(reference)[0] if row is None else row.name

    def resolve(self, reference: str) -> str | None:
        """The version that a reference names now, written `NAME@7`; None if there is none."""
        row = self._index.find(reference)
        return None if row is None else row.reference

    def dtype_of(self, reference: str) -> str | None:
        """The element type of the version that a reference names, without a look at its file; None if there is none."""
        row = self._index.find(reference)
        return None if row is None else row.dtype

    def metadata(self, reference: str) -> Metadata:
        """What is known of a version of a tensor. Raises invalid_field, tensor_not_found and tensor_damaged."""
        check_reference(reference)
        while True:
            row = self._index.find(reference)
            if row is None:
                raise not_found(reference, self, tell_names=True)
            try:
                description, page = read_first_page(self._tensor_folder / row.file)
            except (BadFile, OSError) as problem:
                if self._index.find(reference) is not row:
                    continue  # replaced meanwhile
                if isinstance(problem, OSError):
                    raise unreadable(reference, problem) from None
                raise damaged(reference, str(problem)) from None
            metadata = _metadata(row, page, self.version_numbers(row.name))
            if metadata.damaged or description.id != row.content:
                raise damaged(reference, "its checksums or its log do not match")
            return metadata

    def etag_to_replace(self, name: str) -> str | None:
        """The ETag of the current version of a tensor that is to be uploaded; None where there is none.

        Raises name_conflict for an alias.
        """
        check_no_alias(self._index, name)
        row = self._index.find(name)
        return None if row is None else self._describe(row).etag

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """At most `limit` tensors in the order of their names, those after `after`; the last name if more follow.

        Each is there with its current version.
        """
        rows, following = self._index.page(limit, after)
        return [self._describe(row) for row in rows], following

    def older_versions(self, tensor: Metadata) -> list[Metadata]:
        """The versions of a tensor that are kept beside this one, the oldest first."""
        return [self._describe(row) for row in self._index.versions(tensor.name) if row.version != tensor.version]

    def _describe(self, row: Row) -> Metadata:
        """The metadata of a version, damaged or not. Raises OSError for want of descriptors or memory."""
        versions = self.version_numbers(row.name)
        try:
            description, page = read_first_page(self._tensor_folder / row.file)
            return _metadata(row, page, versions) if description.id == row.content else damaged_metadata(row, versions)
        except (BadFile, OSError) as problem:
            # Want of descriptors or memory says nothing about this file; other errors mean that it is damaged.
            if isinstance(problem, OSError) and problem.errno in _SHORTAGE_ERRNOS:
                raise
            return damaged_metadata(row, versions)

    def usage(self) -> tuple[int, int]:
        """How many tensors there are, and the bytes of the files of all their versions."""
        self._index.catch_up()
        return len(self._index), self._index.total

    def version_count(self) -> int:
        """How many versions all tensors have together."""
        self._index.catch_up()
        return self._index.version_count


def _metadata(row: Row, page: bytes, versions: Sequence[int]) -> Metadata:
    modified = int.from_bytes(page[8 * HeaderWord.MODIFIED : 8 * HeaderWord.MODIFIED + 8], "little")
    return metadata_of(row, page_version(page), modified, versions)

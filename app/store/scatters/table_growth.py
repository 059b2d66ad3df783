"""Replace the files of a keyed table with larger ones when its rows, keys, index or string heap are full.

The rows and keys are copied to new files, which replace the old ones in a single catalogue transaction. The content ID
and the sequence stay the same. A reader that has mapped the old files keeps reading them, in the state that they
contain. The new files durably include everything that was logged, so growth also acts as a checkpoint. If the process
dies at any point, the table has either the old files and their log, or the new files; `remove_leftovers` removes the
other ones.

For a replicated version, the new files include everything that has been applied; the tail stays in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import Row
from app.store.files.key_pieces import key_pieces, keys_spec
from app.store.files.keyed_upload import KeyedUpload, check_capacity
from app.store.files.tensor_file import PAGE, REPLICATION_WORDS, HeaderWord
from app.store.files.write_uploaded_tensor import UploadSpec
from app.store.idempotency import IdempotencyKeys
from app.store.publish_and_remove_versions import VersionChanges, row_of
from app.store.scatters.key_changes import TableFull
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.writable_tensor import WritableTensor
from app.store.store_errors import storage_errors
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits

_PIECE_BYTES: Final = 1 << 22


@dataclass
class TableGrowth:
    """Grow the tables in a store. Call all methods while holding the tensor's lock. They do blocking disk I/O."""

    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _versions: VersionChanges
    _uploads: Path
    _limits: Limits
    _empty_log: Callable[[WritableTensor], None]
    """A function that removes the log of a version's content once content and keys are durable elsewhere."""

    def grow(self, writable: WritableTensor, full: TableFull) -> Row:
        """Make room for the rows and keys that `full` requires, doubling the capacity if possible. Returns the new row.

        Raises insufficient_storage, limit_exceeded and tensor_damaged; in these cases, the table is unchanged.
        """
        layout = writable.keys.layout
        capacity = layout.capacity
        if full.rows > capacity:
            capacity = max(full.rows, 2 * capacity)
            try:
                check_capacity(self._spec(writable, full.rows), capacity, self._limits)
            except GatherError:
                capacity = full.rows
        return self._replace(writable, capacity, full.heap)

    def renew(self, writable: WritableTensor) -> Row:
        """Rewrite the files after a failed fsync. May raise everything that `grow` raises."""
        return self._replace(writable, writable.keys.layout.capacity, 0)

    def _replace(self, writable: WritableTensor, capacity: int, more_heap: int) -> Row:
        with writable.checkpoint_lock():
            if not writable.words[HeaderWord.UNWRITTEN]:
                return self._write(writable, writable, capacity, more_heap)
            # After a failed fsync, the mapped memory may lag behind what was applied, so replay the log into a copy.
            folder = self._logs.tensor_folder
            with closing(WritableTensor(folder, writable.row, writable.log, private=True)) as copy:
                if next(copy.applied_records(), None) is not None:
                    copy.repair(copy.applied_records)
                return self._write(writable, copy, capacity, more_heap)

    def _write(self, writable: WritableTensor, source: WritableTensor, capacity: int, more_heap: int) -> Row:
        row, rows = writable.row, source.words[HeaderWord.ROWS]
        layout, sequence = source.keys.layout, writable.applied
        spec = keys_spec(source.keys.column(rows).rows, layout.dtype, 0, rows)
        heap = max(layout.heap, 2 * (spec.string_bytes + more_heap)) if layout.dtype == "string" else 0
        about = UploadSpec(
            row.name, DTYPES[row.dtype], (rows, *row.shape[1:]), prefault=row.prefault, lock=row.lock, keys=spec,
            capacity=capacity,
        )  # fmt: skip
        assert row.keys is not None
        upload = KeyedUpload(self._uploads, about, self._limits, heap=heap)
        upload.take_identity(row.content, row.sha256, row.keys.sha256)
        self._versions.begin(upload, replaced=row)
        with storage_errors(upload.abandon):
            for piece in key_pieces(source.keys.column(rows).rows, layout.dtype, 0, rows):
                upload.write(piece)
            for piece in _row_pieces(source, rows):
                upload.write(piece)
            upload.finish()
            described = upload.describe()
            now = time.time_ns()
            words = {word: writable.words[word] for word in REPLICATION_WORDS} | {HeaderWord.RENEWED: sequence}
            upload.seal(described, sequence, writable.words[HeaderWord.MODIFIED], words)
            self._keys.store_in_parts([*writable.log.keys.values()])
            new = row_of(described, upload.id, row.created, now, row.number, row.note, upload.keys)
            self._commit(upload, row, new)
            self._versions.finish(upload, [row], row.content)
            with suppress(OSError):  # the new files include the rest of the log; see RENEWED
                self._empty_log(writable)
        found = self._index.find(row.reference)
        assert found is not None
        return found

    def _commit(self, upload: KeyedUpload, old: Row, new: Row) -> None:
        try:
            with self._index.change() as transaction:
                self._versions.install(transaction, upload, new, [old], ())
        except OSError:
            # If a commit failed on disk, a crash before the next commit may still make it durable. In that case,
            # everything that had been logged and checkpointed in between would be missing from the new files. To
            # prevent this, commit a harmless change now.
            with suppress(OSError), self._index.change() as transaction:
                transaction.set_facts({"cleaned": time.time_ns()})
            raise

    @staticmethod
    def _spec(writable: WritableTensor, rows: int) -> UploadSpec:
        row = writable.row
        return UploadSpec(row.name, DTYPES[row.dtype], (rows, *row.shape[1:]))


def _row_pieces(source: WritableTensor, rows: int) -> Iterator[bytes]:
    size = source.description.size * rows // max(source.description.shape[0], 1)
    for begin in range(0, size, _PIECE_BYTES):
        yield source.mapping[PAGE + begin : PAGE + min(begin + _PIECE_BYTES, size)]

"""Execute the queued changes of one tensor as a batch: scatters, upserts and removals.

A scatter of strings writes a new row file. At any time, only the new strings and one piece of the other strings are in
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_rows import INDEX, KEYS, AnsweredKey, Row
from app.store.files.tensor_file import KEY_WORDS, PAGE, HeaderWord
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.idempotency import IdempotencyKeys
from app.store.publish_and_remove_versions import VersionChanges, row_of
from app.store.scatters.key_changes import TableFull
from app.store.scatters.log_replay import ReplayedLogs
from app.store.scatters.pending_scatter import MAX_BATCH, KeyedChange, PendingScatter, ScatterChange, Scattered, Take
from app.store.scatters.replicated_contents import ReplicatedContents
from app.store.scatters.scatter_checkpoints import Checkpoints
from app.store.scatters.scatter_execution import ScatterExecutor
from app.store.scatters.table_growth import TableGrowth
from app.store.scatters.writable_tensor import WritableTensor
from app.store.store_errors import storage_errors
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings


@dataclass
class ContentChanges:
    """Change the content of versions. All methods do blocking disk I/O."""

    _locked: Callable[[str], AbstractContextManager[Row]]
    """A function that takes the lock of a reference's tensor and yields the version's row."""
    _index: CatalogueCache
    _logs: ReplayedLogs
    _keys: IdempotencyKeys
    _checkpoints: Checkpoints
    _executor: ScatterExecutor
    _versions: VersionChanges
    _growth: TableGrowth
    _replicated: ReplicatedContents
    _uploads: Path
    _limits: Limits

    def execute(self, reference: str, take: Take) -> Callable[[], None] | None:
        """Execute and finish the changes that `take` returns, all of them queued for one reference.

        Returns a checkpoint to run after the callers have received their responses, or None. Raises only errors that
        apply to the whole batch.
        """
        batch: list[PendingScatter] = []
        with self._locked(reference) as found:
            row = found
            while True:
                with self._logs.open(row) as writable:
                    if writable.words[HeaderWord.EPOCH]:
                        break
                    if row.dtype == "string":
                        self._change_strings(writable, reference, *take(1))
                        return None
                    batch = batch or take(MAX_BATCH)
                    left = [one for one in batch if not one.done]
                    try:
                        self._executor.execute(writable, reference, left)
                        return self._checkpoints.begin_if_due(row, writable)
                    except TableFull as full:
                        try:
                            row = self._growth.grow(writable, full)
                        except GatherError as problem:
                            next(one for one in left if not one.done).finish(problem)
        batch = take(MAX_BATCH)
        self._replicated.execute(row.name, batch)
        return None

    def _change_strings(self, writable: WritableTensor, reference: str, pending: PendingScatter) -> None:
        if isinstance(pending.change, KeyedChange):
            name = writable.row.name
            pending.finish(
                GatherError("not_implemented", f"{name!r} has rows of strings, which cannot be changed by key")
            )
            return
        answered = self._executor.check(writable, reference, pending)
        pending.finish(answered or self._scatter_strings(writable, reference, pending.change))

    def _scatter_strings(self, writable: WritableTensor, scope: str, change: ScatterChange) -> Scattered:
        """Execute a scatter of strings by writing a new row file, because the strings' lengths may change."""
        row, sequence = writable.row, writable.applied + 1
        spec = UploadSpec(row.name, DTYPES[row.dtype], row.shape, prefault=row.prefault, lock=row.lock)
        upload = Upload(self._uploads, spec, self._limits)
        self._versions.begin(upload, replaced=row)
        with storage_errors(upload.abandon):
            for piece in replaced_strings(writable, change):
                upload.write(piece)
            upload.finish()
            now = time.time_ns()
            described = replace(upload.describe(), id=row.content, sha256=row.sha256)
            etag = described.etag(sequence)
            answers = []
            if change.key is not None:
                clock = self._keys.clock.now()
                answers.append(AnsweredKey(scope, change.key, change.digest, etag, clock, row.number))
            if row.keys is not None:
                upload.link_beside(self._logs.tensor_folder, {row.key_file: KEYS, row.index_file: INDEX})
            upload.seal(described, sequence, now, {word: writable.words[word] for word in KEY_WORDS})
            with self._index.change() as transaction:
                new = row_of(described, upload.id, row.created, now, row.number, row.note, row.keys)
                self._versions.install(transaction, upload, new, [row], answers)
            self._versions.finish(upload, [row], row.content)
        return Scattered(etag, row.number)


_CHUNK_BYTES: Final = 1 << 20


def replaced_strings(writable: WritableTensor, change: ScatterChange) -> Iterator[bytearray]:
    """Yield a tensor's framed strings after a scatter without reduction. The last update of each row takes effect."""
    piece = bytearray()
    for part in _parts(writable, change):
        piece += part
        if len(piece) >= _CHUNK_BYTES:
            yield piece
            piece = bytearray()
    yield piece


def _parts(writable: WritableTensor, change: ScatterChange) -> Iterator[bytes]:
    assert isinstance(change.updates, PackedStrings)
    description = writable.description
    starts = (
        np.frombuffer(writable.mapping, np.uint64, description.item_count, description.offsets_at)
        if description.item_count
        else np.empty(0)
    )
    place = 0
    unique, last = np.unique(change.rows[::-1], return_index=True)
    for row, reverse in zip(unique.tolist(), last.tolist(), strict=True):
        update = (len(change.rows) - 1 - reverse) * change.width
        for column in range(change.width):
            begin = int(starts[row * change.width + column])
            yield from _pieces(writable, place, begin)
            yield bytes(change.updates.frame(update + column))
            place = begin + HEAD + int.from_bytes(writable.mapping[PAGE + begin : PAGE + begin + HEAD], "little")
    yield from _pieces(writable, place, description.size)


def _pieces(writable: WritableTensor, begin: int, end: int) -> Iterator[bytes]:
    for place in range(begin, end, _CHUNK_BYTES):
        yield writable.mapping[PAGE + place : PAGE + min(place + _CHUNK_BYTES, end)]

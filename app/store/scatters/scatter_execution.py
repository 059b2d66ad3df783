"""Carrying out scatters: checked, computed, logged with one fsync for a batch, and applied.

Everything here happens within the lock of the tensor that it is about.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.errors import GatherError
from app.store.files.tensor_file import HeaderWord
from app.store.idempotency import IdempotencyKeys
from app.store.scatters.log_frames import Entry, Record
from app.store.scatters.pending_scatter import ContentReplaced, PendingScatter, ScatterChange, Scattered
from app.store.scatters.scatter_checkpoints import Checkpoints
from app.store.scatters.scatter_reductions import new_rows
from app.store.scatters.writable_tensor import WritableTensor


def _can_join(change: ScatterChange, records: Sequence[Record]) -> bool:
    """Whether a change can be computed before `records` are applied, and its key is none of theirs."""
    if change.key is not None and any(record.entry.key == change.key for record in records):
        return False
    width = change.width * change.updates.array.itemsize
    return change.reduction == "none" or all(record.entry.width in (0, width) for record in records)


@dataclass
class ScatterExecutor:
    """Carries out the scatters of opened tensors."""

    _keys: IdempotencyKeys
    _checkpoints: Checkpoints

    def execute(self, writable: WritableTensor, scope: str, batch: Sequence[PendingScatter]) -> None:
        """Carry out scatters as if one after the other, with as few fsyncs as can be; finishes each of them.

        `scope` is the name by which all of them were asked for. Raises OSError if the disk refuses the log records; the
        scatters that are not finished then have changed nothing.
        """
        left = list(batch)
        while left:
            records, outcomes = self.collect(writable, scope, left)
            if records:
                writable.save_snapshots(records)  # before the log has them: what the log has is carried out
                self._checkpoints.append(writable, records)
                writable.apply(records, snapshots_saved=True)
            for pending, outcome in outcomes:
                pending.finish(outcome)
            del left[: len(outcomes)]

    def collect(
        self, writable: WritableTensor, scope: str, batch: Sequence[PendingScatter]
    ) -> tuple[list[Record], list[tuple[PendingScatter, Scattered | Exception]]]:
        """The first scatters of a batch that can go together: their records, and what they are answered after that.

        Nothing is logged. The log has no tail. Raises OSError.
        """
        records: list[Record] = []
        outcomes: list[tuple[PendingScatter, Scattered | Exception]] = []
        for pending in batch:
            assert isinstance(pending.change, ScatterChange)
            if records and not _can_join(pending.change, records):
                break
            try:
                outcomes.append((pending, self._add(writable, scope, pending, records)))
            except (GatherError, ContentReplaced) as error:
                outcomes.append((pending, error))
        return records, outcomes

    def _add(self, writable: WritableTensor, scope: str, pending: PendingScatter, records: list[Record]) -> Scattered:
        """Add to `records` what `pending` changes after them; its answer."""
        last_sequence = records[-1].entry.sequence if records else None
        answered = self.check(writable, scope, pending, last_sequence)
        if answered is not None:
            return answered
        description, change = writable.description, pending.change
        assert isinstance(change, ScatterChange)
        rows, values = new_rows(
            writable.items, change.rows, change.updates.array, change.width, change.reduction, records
        )
        sequence = (writable.applied if last_sequence is None else last_sequence) + 1
        epoch = writable.words[HeaderWord.EPOCH]
        entry = Entry(
            sequence, time.time_ns(), change.key, change.digest, description.etag(sequence), len(rows), values.shape[1],
            self._keys.logged_at(change.key, replicated=epoch > 0), scope, writable.row.number, epoch,
        )  # fmt: skip
        records.append(Record(entry, rows, values))
        return Scattered(entry.etag, entry.version)

    def check(
        self, writable: WritableTensor, scope: str, pending: PendingScatter, last_sequence: int | None = None
    ) -> Scattered | None:
        """What this Idempotency-Key was answered before, None where the scatter is to be carried out.

        `scope` is the name by which it was asked for; `last_sequence` is that of the last scatter of the same batch, if
        there is one. Raises precondition_failed, invalid_field, insufficient_storage, OSError and ContentReplaced.
        """
        description, change, log = writable.description, pending.change, writable.log
        answered = self._keys.find_answer(scope, log, change.key, change.digest)
        if answered is not None:
            return answered
        pending.conditions.check(description.etag(writable.applied if last_sequence is None else last_sequence))
        if description.id != change.content:
            raise ContentReplaced
        if change.key is not None:
            self._keys.check_limit(log)
        return None

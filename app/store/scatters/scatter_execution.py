"""Execute scatters: check and compute them, log each batch with a single fsync, and apply it.

Call all functions here while holding the tensor's lock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.store.files.tensor_file import HeaderWord
from app.store.idempotency import IdempotencyKeys
from app.store.scatters.key_changes import PlannedChange, TableFull, plan_change, rows_after
from app.store.scatters.log_frames import Entry, Record
from app.store.scatters.pending_scatter import ContentReplaced, KeyedChange, PendingScatter, ScatterChange, Scattered
from app.store.scatters.scatter_checkpoints import Checkpoints
from app.store.scatters.scatter_reductions import new_rows
from app.store.scatters.writable_tensor import WritableTensor


def _can_join(change: ScatterChange | KeyedChange, records: Sequence[Record]) -> bool:
    """Return whether a change can be computed before `records` are applied and repeats no Idempotency-Key of theirs."""
    if change.key is not None and any(record.entry.key == change.key for record in records):
        return False
    if change.updates is None:
        return False
    width = change.width * change.updates.array.itemsize
    return change.reduction == "none" or all(record.entry.width in (0, width) for record in records)


@dataclass
class ScatterExecutor:
    """Execute scatters on opened tensors."""

    _keys: IdempotencyKeys
    _checkpoints: Checkpoints

    def execute(self, writable: WritableTensor, scope: str, batch: Sequence[PendingScatter]) -> None:
        """Execute and finish a batch of scatters in order, with as few fsyncs as possible.

        `scope` is the name by which all requests referred to the tensor. Raises OSError if the log records cannot be
        written; in that case, scatters that are not finished have changed nothing. Raises TableFull if the table must
        grow before a change by key; the changes before that one are finished.
        """
        left = list(batch)
        while left:
            records, outcomes = self.collect(writable, scope, left)
            if records:
                writable.save_snapshots(records)  # before logging, because a record in the log counts as executed
                self._checkpoints.append(writable, records)
                writable.apply(records, snapshots_saved=True)
            for pending, outcome in outcomes:
                pending.finish(outcome)
            del left[: len(outcomes)]

    def collect(
        self, writable: WritableTensor, scope: str, batch: Sequence[PendingScatter]
    ) -> tuple[list[Record], list[tuple[PendingScatter, Scattered | Exception]]]:
        """Return the records of the first scatters that can be logged together, and the outcomes of these scatters.

        The outcomes become valid when the records are durable. This method itself logs nothing. The log must have no
        tail. Raises OSError, and TableFull if the first change needs a larger table.
        """
        records: list[Record] = []
        outcomes: list[tuple[PendingScatter, Scattered | Exception]] = []
        for pending in batch:
            if records and not _can_join(pending.change, records):
                break
            try:
                outcomes.append((pending, self._add(writable, scope, pending, records)))
            except (GatherError, ContentReplaced) as error:
                outcomes.append((pending, error))
            except TableFull:
                if not outcomes:
                    raise
                break
            if pending.change.updates is None and records:
                break  # the changes after a removal cannot be computed until the removal has been applied
        return records, outcomes

    def _add(self, writable: WritableTensor, scope: str, pending: PendingScatter, records: list[Record]) -> Scattered:
        """Append the record of `pending`, computed as if `records` had been applied.

        Returns the result of `pending`. Raises TableFull.
        """
        last_sequence = records[-1].entry.sequence if records else None
        answered = self.check(writable, scope, pending, last_sequence)
        if answered is not None:
            return answered
        description, change = writable.description, pending.change
        if isinstance(change, KeyedChange):
            planned = plan_change(writable, change, records)
        else:
            numbers, width = (
                (change.rows, change.width) if writable.row.keys is None else _rows_of_table(writable, change, records)
            )
            rows, values = new_rows(writable.items, numbers, change.updates.array, width, change.reduction, records)
            planned = PlannedChange(rows, values)
        sequence = (writable.applied if last_sequence is None else last_sequence) + 1
        epoch = writable.words[HeaderWord.EPOCH]
        entry = Entry(
            sequence, time.time_ns(), change.key, change.digest, description.etag(sequence), len(planned.rows),
            planned.values.shape[1], self._keys.logged_at(change.key, replicated=epoch > 0), scope, writable.row.number,
            epoch, **planned.members(),
        )  # fmt: skip
        records.append(Record(entry, planned.rows, planned.values, planned.key_rows, planned.keys))
        return Scattered(entry.etag, entry.version, counts=planned.counts)

    def check(
        self, writable: WritableTensor, scope: str, pending: PendingScatter, last_sequence: int | None = None
    ) -> Scattered | None:
        """Return the original result for this Idempotency-Key, or None if the scatter has to be executed.

        `scope` is the name by which the request referred to the tensor. `last_sequence` is the sequence of the previous
        scatter in the batch, if any. Raises precondition_failed, invalid_field, insufficient_storage, OSError and
        ContentReplaced.
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


def _rows_of_table(
    writable: WritableTensor, change: ScatterChange, records: Sequence[Record]
) -> tuple[NDArray[np.int64], int]:
    """Return the row numbers of a scatter by position to a keyed table, and the width of an update, at most one row.

    Raises ContentReplaced if a row no longer exists or may have moved since the scatter was validated.
    """
    present, row_items = rows_after(writable, records), prod(writable.description.shape[1:])
    if change.of_rows not in (None, present):
        raise ContentReplaced
    if change.width <= row_items:
        if (int(change.rows.max(initial=-1)) + 1) * change.width > present * row_items:
            raise ContentReplaced
        return change.rows, change.width
    if change.width != present * row_items:
        raise ContentReplaced
    return np.tile(np.arange(present), len(change.rows)), row_items

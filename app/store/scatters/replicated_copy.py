"""One machine's copy of a replicated version; see `replicated_contents`. Use it while holding the tensor's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.errors import GatherError
from app.store.catalogue.catalogue_rows import Row
from app.store.files.tensor_file import HeaderWord, is_settled
from app.store.idempotency import IdempotencyKeys
from app.store.scatters.key_changes import TableFull
from app.store.scatters.log_frames import BrokenLog, Entry, Record, decode, frames_in
from app.store.scatters.log_tail import drop_after, frames_after, tail_records
from app.store.scatters.scatter_checkpoints import Checkpoints
from app.store.scatters.writable_tensor import WritableTensor

MOST_BYTES: Final = 1 << 24
"""Maximum bytes of frames read from a log at once. The last frame may exceed this limit."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """The state of a copy.

    `epoch` is the highest epoch that the copy has seen, or 0 if the version is not replicated. `applied` is the
    sequence of the last record that readers see, and `applied_epoch` is that record's epoch, or 0 if unknown. `tail`
    holds the epoch of each later record, in order. `settled` says whether the content is exactly what results from the
    records up to `applied`.
    """

    epoch: int
    applied: int
    applied_epoch: int
    tail: tuple[int, ...]
    settled: bool

    @property
    def last(self) -> int:
        """The sequence of the last record."""
        return self.applied + len(self.tail)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or 0 if unknown."""
        return self.tail[-1] if self.tail else self.applied_epoch


class ReplicatedCopy:
    """One copy of a replicated version. Use it while holding the tensor's lock. All methods may raise OSError."""

    def __init__(
        self, row: Row, writable: WritableTensor, keys: IdempotencyKeys, checkpoints: Checkpoints, session: int
    ) -> None:
        self.row = row
        self.writable = writable
        self._keys = keys
        self._checkpoints = checkpoints
        self._session = session

    def state(self) -> CopyState:
        """Return the state of the copy."""
        words = self.writable.words
        return CopyState(
            words[HeaderWord.EPOCH],
            self.writable.applied,
            words[HeaderWord.APPLIED_EPOCH],
            tuple(placed.entry.epoch for placed in self.writable.log.tail),
            is_settled(words),
        )

    def set_epoch(self, epoch: int) -> None:
        """Durably raise the epoch. The first call makes the version replicated.

        Raises ValueError if the copy has seen a higher epoch, and not_implemented for strings.
        """
        words = self.writable.words
        if self.row.dtype == "string":
            raise GatherError("not_implemented", f"{self.row.name!r} has strings, which cannot be replicated")
        if epoch < max(1, words[HeaderWord.EPOCH]):
            raise ValueError(f"epoch {epoch} of {self.row.name} is lower than {words[HeaderWord.EPOCH]}")
        if not words[HeaderWord.EPOCH]:
            self.writable.set_words({
                HeaderWord.APPLIED_EPOCH: 0,
                HeaderWord.UNSETTLED: 0,
                HeaderWord.LOGGED: self.writable.applied,
                HeaderWord.SESSION: self._session,
            })  # fmt: skip
        if epoch > words[HeaderWord.EPOCH]:
            self.writable.set_epoch(epoch)

    def append_frames(self, frames: bytes) -> None:
        """Durably append all of the records in `frames` to the tail, or none of them.

        Records that are already present are skipped.

        The age of the records' Idempotency-Keys is counted from now on, using this store's clock. Raises ValueError if
        the frames are damaged, do not follow the last record, differ in epoch from records that are already present, or
        contain rows or keys that do not fit the content. Raises TableFull if a keyed table must grow before it can hold
        the records.
        """
        state = self.state()
        try:
            records = [record for frame in frames_in(frames) for record in decode(frame)]
        except BrokenLog:
            raise ValueError("the frames are damaged") from None
        fresh: list[Record] = []
        last, last_epoch = state.last, state.last_epoch
        for record in records:
            entry = record.entry
            if entry.sequence <= state.applied:
                continue
            if entry.sequence <= state.last:
                if state.tail[entry.sequence - state.applied - 1] != entry.epoch:
                    raise ValueError(f"record {entry.sequence} is here with another epoch")
                continue
            if entry.sequence != last + 1 or not max(1, last_epoch) <= entry.epoch <= state.epoch:
                raise ValueError(f"record {entry.sequence} of epoch {entry.epoch} does not follow {last}")
            last, last_epoch = entry.sequence, entry.epoch
            fresh.append(replace(record, entry=replace(
                entry, clock=self._keys.logged_at(entry.key, replicated=True), scope=self.row.name,
                version=self.row.number, etag=self.writable.description.etag(entry.sequence),
            )))  # fmt: skip
        if fresh:
            self._check_room([one.entry for one in fresh])
            for record in fresh:
                self._check_rows(record)
            self.log_records(fresh)
            self.writable.log.settle(self.writable.applied)

    def _check_room(self, fresh: Sequence[Entry]) -> None:
        """Raise TableFull unless the table has room for the tail and these records."""
        changes = [
            one for one in (*(placed.entry for placed in self.writable.log.tail), *fresh) if one.size is not None
        ]
        if not changes or self.row.keys is None:
            return
        layout, rows = self.writable.keys.layout, max(one.size or 0 for one in changes)
        more = sum(one.string_bytes for one in changes)
        if rows > layout.capacity or self.writable.words[HeaderWord.HEAP_END] + more > layout.heap:
            raise TableFull(rows, more)

    def _check_rows(self, record: Record) -> None:
        """Raise ValueError if a record's rows or keys do not fit the content."""
        entry, size, keys = record.entry, self.writable.description.size, self.row.keys
        fits = not len(record.rows) or (
            entry.width > 0 and size % entry.width == 0 and int(record.rows.max()) < size // entry.width
        )
        if record.changes_keys:
            fits = fits and keys is not None and (
                not len(record.key_rows)
                or (entry.key_type == keys.dtype and int(record.key_rows.max()) < (entry.size or 0))
            )  # fmt: skip
        if not fits:
            raise ValueError(f"record {entry.sequence} has rows that {self.row.name} does not have")

    def log_records(self, records: Sequence[Record]) -> None:
        """Durably append records to the tail as one frame."""
        self._checkpoints.append(self.writable, records)
        self.writable.set_words({HeaderWord.LOGGED: records[-1].entry.sequence})

    def commit_to(self, sequence: int) -> int:
        """Apply the tail's records up to `sequence`, or to the end of the tail if it ends earlier.

        Returns the sequence of the last applied record. Applying a record is not durable by itself: after a power loss,
        the record may be in the tail again.
        """
        writable = self.writable
        records = tail_records(writable.log, sequence)
        if records:
            writable.save_snapshots(records)
        for record in records:  # apply them one at a time; see `log_replay.catch_up`
            if self.row.keys is None or is_settled(writable.words):
                writable.apply([record], snapshots_saved=True)
            else:  # keys and index may be in any state, including a later one; see `log_replay`
                writable.repair(lambda record=record: [record])  # type: ignore[misc]
        writable.log.settle(writable.applied)
        return writable.applied

    def drop_tail(self, after: int) -> None:
        """Durably remove the tail's records after the sequence `after`. Raises ValueError if any of them have been
        applied.

        Call this only when a primary orders it. The primary has every record that was ever committed, so the dropped
        records were never committed and no copy has applied them.
        """
        writable = self.writable
        if after < writable.applied:
            raise ValueError(f"record {after + 1} of {self.row.name} is applied")
        if after >= self.state().last:
            return
        writable.set_words({HeaderWord.LOGGED: after})
        drop_after(writable.log, after)
        writable.log.settle(writable.applied)
        writable.set_words({HeaderWord.UNSETTLED: min(after, writable.words[HeaderWord.UNSETTLED])})

    def settle(self) -> None:
        """Allow reads of the content: the primary has reported that all committed records have been applied here."""
        if not is_settled(self.writable.words):
            self.writable.set_words({HeaderWord.UNSETTLED: self.writable.applied})
        self.confirm()

    def confirm(self) -> None:
        """Record that the content has caught up with its primary in this session.

        It now includes everything that the primary had applied at some moment. Before that, the copy may have been
        outdated, because the machine's disk may have been restored to an earlier state.
        """
        if self.writable.words[HeaderWord.CONFIRMED] != self._session:
            self.writable.set_words({HeaderWord.CONFIRMED: self._session})

    def frames_after(self, sequence: int) -> bytes | None:
        """Return frames with the records after `sequence`, including the tail.

        Returns None if some of the records are no longer in the log, and no bytes if there are no later records.
        Otherwise, returns whole frames, stopping when they total MOST_BYTES or more.
        """
        if sequence >= self.state().last:
            return b""
        return frames_after(self.writable.log, sequence, MOST_BYTES) or None

"""A range that takes scatters, on the disk of one simulated machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from app.cluster.replication.replica import AppendPlan, ReplicaState
from tests.cluster.simulation.scatter_truth import LogRecord

LOG_LIMIT = 12
"""Applied records after which a checkpoint takes them out of the log."""


@dataclass
class RangeCopy:
    """Its log is durable; what is applied since the last checkpoint is in memory, and may be on the disk in parts."""

    epoch: int = 0
    applied: int = 0
    log: list[LogRecord] = field(default_factory=list)
    """The records after `start`, in order."""
    start: int = 0
    values: dict[int, int] = field(default_factory=dict)
    base: dict[int, int] = field(default_factory=dict)
    """The values at `start`."""
    keys: dict[str, int] = field(default_factory=dict)
    """The sequences of keys whose records are applied."""

    @property
    def state(self) -> ReplicaState:
        """As the rules see it."""
        tail = tuple(record.epoch for record in self.after(self.applied))
        epoch = self.log[self.applied - self.start - 1].epoch if self.applied > self.start else 0
        return ReplicaState(self.epoch, self.applied, tail, epoch)

    def after(self, sequence: int) -> list[LogRecord]:
        """The records after a sequence that is not before `start`."""
        return self.log[sequence - self.start :]

    def has(self, record: LogRecord) -> bool:
        """Whether it has a record, durably."""
        if record.sequence <= max(self.applied, self.start):
            return True
        found = self.log[record.sequence - self.start - 1 : record.sequence - self.start]
        return bool(found) and found[0].epoch == record.epoch

    def carry_out(self, plan: AppendPlan, records: Sequence[LogRecord]) -> None:
        """Raise the epoch, and truncate and append: what has to be durable before the rest is applied."""
        if plan.epoch is not None:
            self.epoch = plan.epoch
        if plan.truncate_after is not None:
            del self.log[plan.truncate_after - self.start :]
        self.log += records[plan.skip :] if plan.new else ()

    def apply_next(self) -> LogRecord:
        """Apply the next record of the tail."""
        record = self.after(self.applied)[0]
        self.values.update(record.values)
        self.keys[record.scatter.key] = record.sequence
        self.applied = record.sequence
        return record

    def checkpoint(self, keep: int) -> None:
        """Take applied records out of the log, without those after `keep`, if there are many."""
        if self.applied - self.start > LOG_LIMIT:
            end = min(keep, self.applied)
            for record in self.log[: max(0, end - self.start)]:
                self.base.update(record.values)
                self.start = record.sequence
            self.log = [record for record in self.log if record.sequence > self.start]

    def lose_power(self, random: Random) -> None:
        """What was applied since the checkpoint is on the disk in parts: of each record some rows, in no order."""
        applied = random.randrange(self.start, self.applied + 1)
        self.values = dict(self.base)
        for record in self.log[: self.applied - self.start]:
            is_told = record.sequence <= applied
            self.values.update({row: one for row, one in record.values.items() if is_told or random.random() < 0.5})
            if not is_told:
                self.keys.pop(record.scatter.key, None)
        self.applied = applied

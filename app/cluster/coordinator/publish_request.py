"""A router's side of publishing a version, without I/O: where the rows go, what is written, whether it is published.

The driver calls `tick` every second and `receive` with every message that comes, sends what they return, and looks at
`outcome`. All that is asked may be asked again: a content id is published once. Repetitions are equal to the first one:
with a newer `known` a late one would be published once more, after the version was superseded and removed.

Where it is refused with `stale_map` the driver fetches the map and begins another request, with another content id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.cluster.coordinator.messages import Message, Placed, Publish, Published, RangeKey, Refused, Target, Written
from app.cluster.shard_map import ShardMap

Outcome: TypeAlias = Literal["published", "refused", "deadline_exceeded"]
"""`deadline_exceeded`: whether it is published is not known, as after any request that has no answer."""


@dataclass(slots=True)
class PublishRequest:
    """One upload; `asked` says what is published."""

    asked: Publish
    deadline: float
    outcome: Outcome | None = None
    number: int = 0
    """With outcome `published` the number of the version."""
    refusal: tuple[str, str] = ("", "")
    """With outcome `refused` the code and the detail of the error."""
    _targets: dict[tuple[str, RangeKey], Target] = field(default_factory=dict)
    _written: set[tuple[str, RangeKey]] = field(default_factory=set)
    _map: ShardMap | None = None

    def tick(self, now: float) -> Publish | None:
        """What to send the coordinator now."""
        if self.outcome is None and now >= self.deadline:
            self.outcome = "deadline_exceeded"
        return self.asked if self.outcome is None else None

    def receive(self, message: Message) -> None:
        """An answer of the coordinator or of a shard."""
        if self.outcome is not None:
            return
        match message:
            case Placed(content_id, targets) if content_id == self.asked.content_id:
                placed = {(one.node, one.key): one for one in targets}
                if {one.stamp for one in targets} != {one.stamp for one in self._targets.values()}:
                    self._written.clear()  # placed anew, by another coordinator: what was written may be gone
                self._targets = placed
            case Written(key, node):
                self._written.add((node, key))
            case Published(content_id, number, found) if content_id == self.asked.content_id:
                self.outcome, self.number, self._map = "published", number, found
            case Refused(request_id, code, detail) if request_id == self.asked.content_id:
                self.outcome, self.refusal = "refused", (code, detail)

    @property
    def targets(self) -> list[Target]:
        """All shards that are to get rows; none before the coordinator has said which."""
        return list(self._targets.values())

    @property
    def published(self) -> tuple[int, ShardMap] | None:
        """The number of the version and the map that has it; None before it is published."""
        return None if self._map is None else (self.number, self._map)

    @property
    def to_write(self) -> list[Target]:
        """The shards that are to get rows and have not said that they have them; none where they read a URL."""
        if self.outcome is not None or self.asked.url:
            return []
        return [target for one, target in self._targets.items() if one not in self._written]

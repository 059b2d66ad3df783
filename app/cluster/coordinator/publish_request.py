"""A router's side of publishing a version, without I/O: where the rows go, and whether it is published.

The driver sends `asked` to the coordinator repeatedly, gives each answer to `receive`, and reads `outcome`. However
often it asks, a content id is published once. Every repetition equals the first request: if a late one carried a newer
`known`, it would publish the version again after it was superseded and removed.

If the coordinator refuses with `stale_map`, the driver fetches the map and begins a new request with a new content id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.cluster.coordinator.messages import Message, Placed, Publish, Published, Refused, Target
from app.cluster.shard_map import ShardMap


@dataclass(slots=True)
class PublishRequest:
    """One upload; `asked` says what is published."""

    asked: Publish
    outcome: Literal["published", "refused"] | None = None
    targets: tuple[Target, ...] = ()
    """All shards that are to get rows; none before the coordinator has said which."""
    published: tuple[int, ShardMap] | None = None
    """The number of the version and the map that has it; None before it is published."""
    refusal: tuple[str, str] = ("", "")
    """With outcome `refused` the code and the detail of the error."""

    def receive(self, message: Message) -> None:
        """An answer of the coordinator."""
        if self.outcome is not None:
            return
        match message:
            case Placed(content_id, targets) if content_id == self.asked.content_id:
                self.targets = targets
            case Published(content_id, number, found) if content_id == self.asked.content_id:
                self.outcome, self.published = "published", (number, found)
            case Refused(request_id, code, detail) if request_id == self.asked.content_id:
                self.outcome, self.refusal = "refused", (code, detail)

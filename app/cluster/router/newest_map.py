"""The map that a router serves by: the newest that it has been told, kept while nobody answers."""

from __future__ import annotations

from app.cluster.shard_map import ShardMap


class NewestMap:
    """The newest map; its generation only rises."""

    def __init__(self, first: ShardMap) -> None:
        self.current = first

    def offer(self, found: ShardMap) -> bool:
        """Take a map, unless it is no newer than the one that is served; whether it was taken."""
        if found.generation <= self.current.generation:
            return False
        self.current = found
        return True

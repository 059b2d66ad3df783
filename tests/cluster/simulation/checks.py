"""What must hold at every moment of a schedule, whatever fails. What does not raises Violation, which names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.cluster.coordinator.cluster_state import ClusterState
from app.cluster.coordinator.messages import RangeKey
from app.cluster.shard_map import ShardMap
from app.tensors.tensor_name import split_reference
from tests.cluster.simulation.truth import Content, Items


class Violation(AssertionError):
    """Something that must not be."""


@dataclass
class Checks:
    """Sees every record, every write and removal on a disk, every map that is served, and every answer."""

    contents: dict[str, Content] = field(default_factory=dict)
    """Every upload that was begun."""
    removals: set[tuple[str, int]] = field(default_factory=set)
    """Versions whose removal was asked for."""
    history: list[ClusterState] = field(default_factory=lambda: [ClusterState()])
    """The records by number; the first is the one before all."""
    on_disk: dict[RangeKey, set[str]] = field(default_factory=dict)
    """The machines whose disks have a range whole and synced."""
    wiped: set[tuple[str, RangeKey]] = field(default_factory=set)
    """Ranges that went with the loss of a disk, and have not been written there again."""
    published: set[str] = field(default_factory=set)
    """Contents whose publishing was acknowledged."""
    answers: int = 0

    @property
    def latest(self) -> ClusterState:
        """The last record that is durable."""
        return self.history[-1]

    # Disks

    def written(self, node: str, key: RangeKey) -> None:
        """A range is whole and synced."""
        self.on_disk.setdefault(key, set()).add(node)
        self.wiped.discard((node, key))

    def removed(self, node: str, key: RangeKey) -> None:
        """A shard has removed a range: none that the map lists there."""
        self.on_disk[key].discard(node)
        for one in self.latest.listed:
            if one.key == key and node in one.nodes:
                raise Violation(f"{node} dropped {key}, which the map lists there")

    def disk_lost(self, node: str) -> None:
        """A disk is lost, with all that was on it."""
        for key, nodes in self.on_disk.items():
            if node in nodes:
                nodes.discard(node)
                self.wiped.add((node, key))

    def has(self, node: str, key: RangeKey) -> bool:
        """Whether a disk has a range whole and synced."""
        return node in self.on_disk.get(key, ())

    # Records

    def committed(self, before: ClusterState | None, record: ClusterState) -> None:
        """A record becomes durable."""
        if record.generation != len(self.history):
            raise Violation(f"record {record.generation} comes after {len(self.history) - 1}")
        before = self.history[-1]
        listed = {(node, one.key) for one in before.listed for node in one.nodes}
        for one in record.listed:
            if len(set(one.nodes)) != len(one.nodes):
                raise Violation(f"{one.key} is listed twice on a machine")
            for node in one.nodes:
                if (node, one.key) not in listed and not self.has(node, one.key) and (node, one.key) not in self.wiped:
                    raise Violation(f"{one.key} is listed on {node}, which does not have it whole")
        for name in {*before.map.tables, *record.map.tables}:
            self._check_versions(name, before, record)
        self.history.append(record)

    def _check_versions(self, name: str, before: ClusterState, record: ClusterState) -> None:
        old, new = before.map.tables.get(name), record.map.tables.get(name)
        had = {one.number: one.content_id for one in old.versions} if old else {}
        has = {one.number: one.content_id for one in new.versions} if new else {}
        ever = before.table_record(name).last_number
        fresh = sorted(set(has) - set(had))
        if fresh and fresh[0] <= ever:
            raise Violation(f"{name}@{fresh[0]} has a number that was used before")
        for number, content_id in has.items():
            if had.get(number, content_id) != content_id:
                raise Violation(f"{name}@{number} has another content")
            if number in fresh and content_id in self.published:
                raise Violation(f"{content_id} was acknowledged and is published once more, as {name}@{number}")
            if self.contents[content_id].table != name:
                raise Violation(f"{name}@{number} has the content of another table")
        for number in set(had) - set(has):
            asked = (name, number) in self.removals
            keep = min((self.contents[has[one]].keep for one in fresh), default=0)
            superseded = keep and len([one for one in {*had, *has} if one > number]) >= keep
            if not asked and not superseded:
                raise Violation(f"{name}@{number} is gone, and nobody removed it")
        if new is not None and old is not None and new.live != max(has):
            raise Violation(f"{name} stands for {new.live}, and the newest is {max(has)}")

    # Routers and answers

    def served(self, router: str, before: ShardMap, after: ShardMap) -> None:
        """A router serves by a map."""
        if after.generation < before.generation:
            raise Violation(f"{router} went back from map {before.generation} to {after.generation}")
        if after.generation >= len(self.history) or self.history[after.generation].map != after:
            raise Violation(f"{router} serves by a map {after.generation} that is in no record")

    def acknowledged(self, served: ShardMap, made: ShardMap) -> None:
        """A change is acknowledged through a router, which must serve by it."""
        if made.generation >= len(self.history):
            raise Violation(f"a change was acknowledged before record {made.generation} was durable")
        if served.generation < made.generation:
            raise Violation(f"a change of map {made.generation} was acknowledged by a router at {served.generation}")

    def answered(self, reference: str, since: int, fractions: Sequence[float], rows: Items) -> None:
        """A lookup was answered: of one content, which the name stood for at some time while it was under way."""
        self.answers += 1
        contents = {content for content, _ in rows}
        if len(contents) > 1:
            raise Violation(f"an answer for {reference} has rows of {sorted(contents)}")
        if not rows:
            return
        content = self.contents[contents.pop()]
        expected = [int(fraction * content.rows) for fraction in fractions]
        if [row for _, row in rows] != expected:
            raise Violation(f"an answer for {reference} has rows {rows} instead of {expected}")
        if content.content_id not in self._named(reference, since):
            raise Violation(f"an answer for {reference} is of {content.content_id}, which it did not stand for")

    def not_found(self, reference: str, since: int) -> None:
        """A lookup was answered that there is no such thing."""
        if "" not in self._named(reference, since):
            raise Violation(f"{reference} was not found, and was there all the time")

    def _named(self, reference: str, since: int) -> set[str]:
        """The contents that a reference stood for from record `since` on, "" for none."""
        found = set()
        for record in self.history[since:]:
            named = record.map.find(reference)
            found.add(named[1].content_id if named is not None else "")
        return found

    # When all faults are over

    def settled(
        self, draining_ends: bool, aliases: Mapping[str, set[str]], draining: Mapping[str, set[bool]], gone: set[str]
    ) -> None:
        """Every range is whole wherever the map lists it, and nowhere else; acknowledged changes are in the map."""
        latest = self.latest
        wanted = set()
        for one in latest.listed:
            for node in one.nodes:
                wanted.add((node, one.key))
                if not self.has(node, one.key):
                    raise Violation(f"{node} does not have {one.key}, though the faults are over")
                if draining_ends and node in latest.draining:
                    raise Violation(f"{node} is drained and still has {one.key}")
        for key, nodes in self.on_disk.items():
            for node in nodes - gone:
                if (node, key) not in wanted:
                    raise Violation(f"{node} still has {key}, which the map does not list there")
        for alias, may_be in aliases.items():
            if latest.map.aliases.get(alias, "") not in may_be:
                raise Violation(f"{alias} names {latest.map.aliases.get(alias)}, acknowledged was {may_be}")
        for node, may_drain in draining.items():
            if (node in latest.draining) not in may_drain:
                raise Violation(f"whether {node} is drained is not what was acknowledged")
        for name, table in latest.map.tables.items():
            for version in table.versions:
                if split_reference(name)[1] is not None or version.content_id not in latest.contents:
                    raise Violation(f"{name}@{version.number} has no content")

    def publish_acknowledged(self, content_id: str, number: int) -> None:
        """A version was acknowledged under a number: some record has it."""
        self.published.add(content_id)
        table = self.contents[content_id].table
        for record in self.history:
            found = record.map.find(f"{table}@{number}")
            if found is not None:
                if found[1].content_id != content_id:
                    raise Violation(f"{content_id} was acknowledged as {table}@{number}, which is another one")
                return
        raise Violation(f"{content_id} was acknowledged as {table}@{number}, which is in no record")

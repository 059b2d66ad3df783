"""What must hold at every moment of a schedule, whatever fails. What does not raises Violation, which names it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from app.cluster.catalogue.listed_segments import Listed, listed_segments
from app.cluster.catalogue.node_choice import count_zone_overlaps
from app.cluster.catalogue.ranges import PROPOSED
from app.cluster.catalogue.records import Catalogue, Change, RangeRecord, Segment, Table, Version
from app.cluster.catalogue.transitions import zones_of
from app.cluster.shard_map import ShardMap
from app.tensors.tensor_name import split_reference
from tests.cluster.simulation.scatter_truth import LogRecord, ScatterTruth
from tests.cluster.simulation.truth import Content, Items, Violation, rows_of


@dataclass
class Checks:
    """Sees every change of the catalogue, every write and removal on a disk, every map served, and every answer."""

    contents: dict[str, Content] = field(default_factory=dict)
    """Every upload that was begun."""
    removals: set[tuple[str, int]] = field(default_factory=set)
    """Versions whose removal was asked for."""
    history: list[Catalogue] = field(default_factory=lambda: [Catalogue()])
    """The catalogues by revision; the first is the one before all."""
    on_disk: dict[str, set[str]] = field(default_factory=dict)
    """The machines whose disks have a segment whole and synced."""
    wiped: set[tuple[str, str]] = field(default_factory=set)
    """Segments that went with the loss of a disk, and have not been written there again."""
    given_up: set[str] = field(default_factory=set)
    """Uploads that their routers have ended. That one was begun may arrive later, and its record comes back."""
    published: set[str] = field(default_factory=set)
    """Contents whose publishing was acknowledged."""
    has_record: Callable[[str, str, LogRecord], bool] = lambda node, tensor, record: True
    """Whether the disk of a node has a record of a range, or has lost its rows."""
    scatters: ScatterTruth = field(init=False)

    def __post_init__(self) -> None:
        self.scatters = ScatterTruth(lambda: self.latest, self.has_record)

    @property
    def latest(self) -> Catalogue:
        """The catalogue as the database has it."""
        return self.history[-1]

    # Disks

    def written(self, node: str, tensor: str, rows: Items) -> None:
        """A segment is whole and synced: the rows that its name says."""
        if rows != rows_of(tensor):
            raise Violation(
                f"{node} has written other rows as {tensor}: {rows[:1]} to {rows[-1:]}, {len(rows)} of them"
            )
        self.on_disk.setdefault(tensor, set()).add(node)
        self.wiped.discard((node, tensor))

    def removed(self, node: str, tensor: str) -> None:
        """A shard has removed a segment: none that the catalogue lists there, or is about to."""
        self.on_disk[tensor].discard(node)
        if (node, tensor) in set(_wanted(self.latest)) and tensor.partition(".")[0] not in self.given_up:
            raise Violation(f"{node} dropped {tensor}, which the catalogue lists there")

    def disk_lost(self, node: str) -> None:
        """A disk is lost, with all that was on it."""
        for tensor, nodes in self.on_disk.items():
            if node in nodes:
                nodes.discard(node)
                self.wiped.add((node, tensor))

    def has(self, node: str, tensor: str) -> bool:
        """Whether a disk has a segment whole and synced."""
        return node in self.on_disk.get(tensor, ())

    # The catalogue

    def committed(self, catalogue: Catalogue, change: Change) -> None:
        """The database has a newer catalogue, with this change."""
        before = self.latest
        if catalogue.revision != before.revision + 1:
            raise Violation(f"revision {catalogue.revision} comes after {before.revision}")
        for key in change.puts:
            kind, _, name = key.partition("/")
            if kind == "tables":
                self._check_table(name, before.tables.get(name), catalogue.tables.get(name), catalogue.ranges)
            old, new = before.ranges.get(name), catalogue.ranges.get(name)
            if kind == "ranges" and old is not None and new is not None and not _follows(old, new):
                raise Violation(f"{name} was at epoch {old.epoch}, and is {new}")
        self.history.append(catalogue)

    def _check_table(self, name: str, old: Table | None, new: Table | None, opened: Collection[str]) -> None:
        had = {} if old is None else {one.number: one for one in old.versions}
        has = {} if new is None else {one.number: one for one in new.versions}
        for number, version in has.items():
            self._check_segments(version, had.get(number), opened)
        ever = 0 if old is None else old.last_number
        fresh = sorted(set(has) - set(had))
        if fresh and fresh[0] <= ever:
            raise Violation(f"{name}@{fresh[0]} has a number that was used before")
        for number, version in has.items():
            if number in had and had[number].content_id != version.content_id:
                raise Violation(f"{name}@{number} has another content")
            if number in fresh and version.content_id in self.published:
                raise Violation(f"{version.content_id} was acknowledged and is published once more, as {name}@{number}")
            if self.contents[version.content_id].table != name:
                raise Violation(f"{name}@{number} has the content of another table")
        for number in set(had) - set(has):
            keep = min((self.contents[has[one].content_id].keep for one in fresh), default=0)
            superseded = keep and len([one for one in {*had, *has} if one > number]) >= keep
            if (name, number) not in self.removals and not superseded:
                raise Violation(f"{name}@{number} is gone, and nobody removed it")
        if new is not None and list(has) != sorted(has):
            raise Violation(f"{name} has its versions in the order {list(has)}")

    def _check_segments(self, version: Version, before: Version | None, opened: Collection[str]) -> None:
        """The segments have all rows, and each shard that is listed anew has its segment whole, unless it is open."""
        bounds = [0, *(one.stop for one in version.segments)]
        if [one.start for one in version.segments] != bounds[:-1] or bounds[-1] != version.shape[0]:
            raise Violation(f"{version.content_id} has the segments {bounds} of {version.shape[0]} rows")
        known = set() if before is None else set(_places(before))
        for segment in version.segments:
            tensor = version.tensor(segment)
            if not segment.nodes or len(set(segment.nodes)) != len(segment.nodes):
                raise Violation(f"{tensor} is listed on {segment.nodes}")
            for node in segment.nodes:
                is_new = (node, tensor) not in known and tensor not in opened
                if is_new and not self.has(node, tensor) and (node, tensor) not in self.wiped:
                    raise Violation(f"{tensor} is listed on {node}, which does not have it whole")

    # Routers and answers

    def served(self, router: str, before: ShardMap, after: ShardMap) -> None:
        """A router serves by a map."""
        if after.generation < before.generation:
            raise Violation(f"{router} went back from map {before.generation} to {after.generation}")

    def acknowledged(self, served: ShardMap, revision: int) -> None:
        """A change is acknowledged through a router, which must serve by it."""
        if served.generation < revision:
            raise Violation(f"a change of revision {revision} was acknowledged by a router at {served.generation}")

    def answered(self, reference: str, since: int, fractions: Sequence[float], rows: Items) -> None:
        """A lookup was answered: of one content, which the name stood for at some time while it was under way."""
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
        """The contents that a reference stood for from revision `since` on, "" for none."""
        return {_find(catalogue, reference) for catalogue in self.history[since:]}

    def publish_acknowledged(self, content_id: str) -> None:
        """A version was acknowledged: some catalogue has it."""
        self.published.add(content_id)
        table = self.contents[content_id].table
        for catalogue in reversed(self.history):
            found = catalogue.tables.get(table)
            if found is not None and any(one.content_id == content_id for one in found.versions):
                return
        raise Violation(f"{content_id} was acknowledged, and no catalogue has had it")

    # When all faults are over

    def settled(self, is_roomy: bool, gone: set[str]) -> None:
        """Each segment is whole wherever the catalogue lists it, and nowhere else; what was acknowledged is so.

        `is_roomy` says that there is room for all replicas on shards that are not drained.
        """
        latest = self.latest
        wanted = set(_wanted(latest))
        for one in listed_segments(latest):
            for node in one.segment.nodes:
                if not self.has(node, one.tensor):
                    raise Violation(f"{node} does not have {one.tensor}, though the faults are over")
            if is_roomy:
                self._check_places(one, latest)
            if one.opened is not None and set(one.opened.in_sync) != set(one.segment.nodes) - gone:
                raise Violation(f"{one.tensor} is listed on {one.segment.nodes}, and its range is {one.opened}")
        for tensor, nodes in self.on_disk.items():
            for node in nodes - gone:
                if (node, tensor) not in wanted:
                    raise Violation(f"{node} still has {tensor}, which the catalogue does not list there")
        if latest.uploads:
            raise Violation(f"uploads go on: {sorted(latest.uploads)}")

    def _check_places(self, one: Listed, latest: Catalogue) -> None:
        segment, limit = one.segment, latest.options.segment_bytes
        if set(segment.nodes) & latest.drained:
            raise Violation(f"{one.tensor} is on {segment.nodes}, and drained are {sorted(latest.drained)}")
        if len(segment.nodes) != one.replicas:
            raise Violation(f"{one.tensor} is on {segment.nodes}, and {one.replicas} replicas are wanted")
        is_cut = one.opened is None and segment.stop - segment.start > 1
        if limit is not None and segment.size > limit and is_cut:
            raise Violation(f"{one.tensor} has {segment.size} bytes, and segments have {limit} at most")
        zones = zones_of(latest)
        usable = {zones[node] for node in latest.alive - latest.drained}
        if "" not in usable and count_zone_overlaps(segment.nodes, zones) > max(0, one.replicas - len(usable)):
            raise Violation(f"{one.tensor} is on {segment.nodes} of the zones {zones}")


def _places(version: Version) -> Iterator[tuple[str, str]]:
    for segment in version.segments:
        for node in segment.nodes:
            yield node, version.tensor(segment)


def _wanted(catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Shards and the segments that tables or uploads list there."""
    for table in catalogue.tables.values():
        for version in table.versions:
            yield from _places(version)
    for content_id, upload in catalogue.uploads.items():
        for segment in upload.segments:
            for node in segment.nodes:
                yield node, upload_tensor(content_id, segment)


def upload_tensor(content_id: str, segment: Segment) -> str:
    """The name under which shards have a segment of an upload."""
    return f"{content_id}.{segment.start}-{segment.stop}"


def _find(catalogue: Catalogue, reference: str) -> str:
    """The content that a reference names, "" for none."""
    name, number = split_reference(reference)
    own = catalogue.record_of(name)
    found = own.current if number is None else own.version(number)
    return "" if found is None else found.content_id


def _follows(old: RangeRecord, new: RangeRecord) -> bool:
    """Whether a record of a range may come after another one."""
    return new.epoch > old.epoch or new.epoch == old.epoch == PROPOSED

"""A simulated router: reads by `RangeReads`, serves by the catalogue's map, uploads and changes by transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from app.cluster.catalogue.records import Catalogue, Change, Segment, Version
from app.cluster.catalogue.serving_map import ServingMap
from app.cluster.catalogue.transitions import begin_upload, end_upload, move_upload, publish, segment_bounds
from app.cluster.router.range_reads import AskReplica, FetchMap, RangeReads, ReadAction, Wake
from app.cluster.router.replica_choice import ReplicaChoice
from app.cluster.shard.pull_order import PullOrder, PullSource
from app.cluster.shard_map import ShardMap
from app.tensors.dtypes import DTYPES
from tests.cluster.simulation.checks import Checks, upload_tensor
from tests.cluster.simulation.database import Database, DatabaseClient
from tests.cluster.simulation.scattering import RoutedScatter, ScatterRequest
from tests.cluster.simulation.service_calls import Answer, PullSegment, Read, ScatterRange, Sent, Write
from tests.cluster.simulation.shard import ROW_BYTES
from tests.cluster.simulation.truth import Content, Items, Violation, digest_of, rows_of
from tests.cluster.simulation.world import Process, World

LATE_AFTER = 0.5
LOOKUP_DEADLINE = 5.0
PUBLISH_DEADLINE = 25.0
WRITE_AFTER = 3.0
"""How long a router waits until a shard that is to get rows is taken for lost."""
DTYPE = DTYPES["float32"]
Answered = Callable[[str, Items], None]


class SimulatedUpload:
    """A version on its way, as `VersionWriter` has it: to all replicas at once; a shard that is lost is replaced."""

    def __init__(self, router: Router, content: Content, ranges: int, done: Callable[[str], None]) -> None:
        self._router = router
        self._content = content
        bounds = segment_bounds(content.rows, ranges)
        self._bounds = [Segment(start, stop, (stop - start) * ROW_BYTES) for start, stop in bounds]
        self._done = done
        self._deadline = router.world.now + PUBLISH_DEADLINE
        self._whole: set[tuple[str, str]] = set()
        self._asked: set[tuple[str, str]] = set()
        self._lost: set[str] = set()
        """Shards that have failed: no segment comes back to them."""
        self._is_over = False

    def begin(self) -> None:
        """Place the segments and write them."""
        content_id, table = self._content.content_id, self._content.table
        self._transact(lambda catalogue: begin_upload(catalogue, content_id, table, self._bounds), self._go_on)

    def _transact(self, transition: Callable[[Catalogue], Change | None], then: Callable[[], None]) -> None:
        def made(code: str) -> None:
            if code:
                self._give_up(code)
            else:
                then()

        self._router.client.transact(transition, made)

    def _go_on(self) -> None:
        """Write what is not whole; publish when all is."""
        upload = self._router.client.catalogue.uploads.get(self._content.content_id)
        if self._is_over:
            return
        if upload is None or self._router.world.now >= self._deadline:
            self._give_up("shard_unavailable")
            return
        places = [(segment, node) for segment in upload.segments for node in segment.nodes]
        for segment, node in places:
            place = node, upload_tensor(self._content.content_id, segment)
            if place not in self._whole and place not in self._asked:
                self._asked.add(place)
                self._write(segment, node)
        missing = [
            node for one, node in places if (node, upload_tensor(self._content.content_id, one)) not in self._whole
        ]
        if self.may_publish(missing):
            self._publish(upload.segments)

    def may_publish(self, missing: Sequence[str]) -> bool:
        """Whether all is whole: `missing` has the shards that have not said so."""
        return not missing

    def _write(self, segment: Segment, node: str) -> None:
        router, tensor = self._router, upload_tensor(self._content.content_id, segment)
        catalogue = router.client.catalogue
        others = [other for other in segment.nodes if (other, tensor) in self._whole and other in catalogue.nodes]
        asked: Write | PullSegment
        if others:
            sources = tuple(PullSource(catalogue.nodes[other].address, tensor, node=other) for other in others)
            fence = catalogue.revisions.get("reconciler", 0)
            order = PullOrder(fence, DTYPE, (segment.stop - segment.start,), segment.size, "", sources)
            asked = PullSegment(next(router.world.ids), tensor, order)
        else:
            asked = Write(next(router.world.ids), tensor, rows_of(tensor))

        def answered(answer: Answer | None) -> None:
            self._asked.discard((node, tensor))
            if answer is not None and answer.is_done:
                self._whole.add((node, tensor))
                self._go_on()
            elif not self._is_over:
                self._lost.add(node)
                content_id, lost = self._content.content_id, self._lost
                self._transact(lambda now: move_upload(now, content_id, segment.start, node, lost), self._go_on)

        if node in catalogue.nodes:
            router.ask(catalogue.nodes[node].address, asked, router.world.now + WRITE_AFTER, answered)
        else:  # it has been forgotten since
            answered(None)

    def _publish(self, segments: tuple[Segment, ...]) -> None:
        content = self._content
        whole = tuple(
            replace(one, sha256=digest_of(rows_of(upload_tensor(content.content_id, one)))) for one in segments
        )
        size = content.rows * ROW_BYTES
        made = Version(0, content.content_id, DTYPE, (content.rows,), whole, 1, "", size, content.url)
        self._is_over = True

        def done(code: str) -> None:
            self._router.end(content.content_id, code)
            self._done(code)

        self._router.change(lambda catalogue: publish(catalogue, content.table, made, content.keep), done)

    def _give_up(self, code: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._router.checks.given_up.add(self._content.content_id)
            self._router.end(self._content.content_id)
            self._done(code)


class Router(Process):
    """A router, from one start to its crash. It has nothing on a disk."""

    upload: type[SimulatedUpload] = SimulatedUpload

    def __init__(self, world: World, name: str, database: Database, checks: Checks) -> None:
        super().__init__(world, name, f"{name}:8000")
        self.checks = checks
        self.served = ShardMap()
        self.choice = ReplicaChoice()
        self.client = DatabaseClient(database, self, self.take)
        self.ended: set[str] = set()
        """Uploads of this router that are over. A record of one may come back: that it was begun may arrive late."""
        self._serving = ServingMap()
        self._asked: dict[int, Callable[[Answer | None], None]] = {}

    def take(self, catalogue: Catalogue) -> None:
        """Serve by a newer catalogue."""
        self.use(self._serving.of(catalogue))
        for content_id in sorted(self.ended & catalogue.uploads.keys()):
            self.end(content_id)

    def end(self, content_id: str, code: str = "again") -> None:
        """End an upload, however long it takes."""
        self.ended.add(content_id)
        if code:
            self.client.transact(partial(end_upload, content_id=content_id), partial(self.end, content_id))

    def use(self, found: ShardMap) -> None:
        """Serve by a map."""
        self.checks.served(self.address, self.served, found)
        self.served = found

    def receive(self, sender: str, message: Sent) -> None:
        """An answer has come."""
        if isinstance(message, Answer) and message.request_id in self._asked:
            self._asked.pop(message.request_id)(message)

    def ask(
        self,
        address: str,
        asked: Write | Read | PullSegment | ScatterRange,
        at: float,
        done: Callable[[Answer | None], None],
    ) -> None:
        """Ask a shard; `done` is called with its answer, or with None if none has come at `at`."""
        if not self.world.answers(address, self.machine):
            self.after(0.001, done, None)
            return
        self._asked[asked.request_id] = done
        self.world.send(self, address, asked)
        self.after(at - self.world.now, self._late, asked.request_id)

    def _late(self, request_id: int) -> None:
        if request_id in self._asked:
            self._asked.pop(request_id)(None)

    def lookup(
        self, reference: str, rows: Sequence[float], done: Answered, session: dict[str, int] | None = None
    ) -> None:
        """Rows of a table, each as a fraction of its size; `done` is called with the outcome.

        `session` has the sequences by range that the connection has seen.
        """
        Lookup(self, reference, rows, done, {} if session is None else session).begin()

    def scatter(self, asked: ScatterRequest, session: dict[str, int], done: Callable[[str], None]) -> None:
        """Scatter to rows of a table; `done` is called with the outcome, "" if it is made."""
        RoutedScatter(self, asked, session, done).begin()

    def publish(self, content: Content, ranges: int, done: Callable[[str], None]) -> None:
        """Publish a version; `done` is called with the outcome, "" for one that is published."""
        self.upload(self, content, ranges, done).begin()

    def change(self, transition: Callable[[Catalogue], Change | None], done: Callable[[str], None]) -> None:
        """Change the catalogue; `done` is called with the outcome, "" if it is made."""

        def made(code: str) -> None:
            if not code:
                self.checks.acknowledged(self.served, self.client.catalogue.revision)
            done(code)

        self.client.transact(transition, made)


class Lookup:
    """One lookup: `RangeReads`, anew if the version went away or was cut anew."""

    def __init__(
        self, router: Router, reference: str, rows: Sequence[float], done: Answered, session: dict[str, int]
    ) -> None:
        self._router = router
        self._reference = reference
        self._fractions = rows
        self._done = done
        self._session = session
        self._seen = dict(session)
        """What the connection had seen when it asked."""
        self._world = router.world
        self._deadline = router.world.now + LOOKUP_DEADLINE
        self._is_done = False

    def begin(self) -> None:
        """Ask for all rows, of the version that the name stands for now."""
        found = self._router.served
        named = found.find(self._reference)
        if named is None:
            self._finish("tensor_not_found", ())
            return
        version = named[1]
        self._rows = [int(fraction * version.rows) for fraction in self._fractions] if version.rows else []
        self._by_range: dict[int, list[int]] = {}
        self._answers: dict[int, tuple[str, int]] = {}
        for row in self._rows:
            number = next(number for number, one in enumerate(version.ranges) if row < one.stop)
            self._by_range.setdefault(number, []).append(row)
        self._reads = RangeReads(found, version, self._router.choice, self._deadline, LATE_AFTER)
        self._do(self._reads, self._reads.start(self._by_range, self._world.now))

    def _ask(self, reads: RangeReads, action: AskReplica) -> None:
        one = reads.version.ranges[action.number]
        rows = tuple(row - one.start for row in self._by_range[action.number])
        asked = Read(next(self._world.ids), one.tensor, rows, self._session.get(one.tensor, 0))
        self._router.ask(action.replica.address, asked, action.late_at, partial(self._answered, reads, action))
        if action.hedge_at < self._deadline:
            self._router.after(action.hedge_at - self._world.now, self._hedge, reads, action.number)

    def _hedge(self, reads: RangeReads, number: int) -> None:
        if reads is self._reads:
            action = reads.hedge(number, self._world.now)
            if action is not None:
                self._do(reads, [action])

    def _answered(self, reads: RangeReads, asked: AskReplica, answer: Answer | None) -> None:
        if reads is not self._reads:
            return
        number, replica, now = asked.number, asked.replica, self._world.now
        if answer is None:
            self._do(reads, reads.on_failure(number, replica, now))
        elif answer.rows is None:
            self._do(reads, reads.on_missing_range(number, replica, now))
        elif reads.on_rows(number, replica):
            self._answers.update(zip(self._by_range[number], answer.rows, strict=True))
            self._see(reads.version.ranges[number].tensor, answer.sequence)
            self._do(reads, [])

    def _see(self, tensor: str, sequence: int) -> None:
        if sequence < self._seen.get(tensor, 0):
            raise Violation(f"a connection that has seen {tensor} at {self._seen[tensor]} was answered {sequence}")
        self._session[tensor] = max(sequence, self._session.get(tensor, 0))

    def _fetched(self, reads: RangeReads, _: Catalogue | None) -> None:
        if reads is self._reads:
            self._do(reads, reads.on_map_fetched(self._router.served, self._world.now))

    def _woken(self, reads: RangeReads) -> None:
        if reads is self._reads:
            self._do(reads, reads.on_wake(self._world.now))

    def _do(self, reads: RangeReads, actions: list[ReadAction]) -> None:
        for action in actions:
            match action:
                case AskReplica():
                    self._ask(reads, action)
                case FetchMap():
                    self._router.client.refresh(partial(self._fetched, reads))
                case Wake(at):
                    self._router.after(max(0.0, at - self._world.now), self._woken, reads)
        if reads.outcome == "version_gone":
            self.begin()
        elif reads.outcome == "done":
            self._finish("done", tuple(self._answers[row] for row in self._rows))
        elif reads.outcome is not None:
            self._finish(reads.outcome, ())

    def _finish(self, outcome: str, rows: Items) -> None:
        if not self._is_done:
            self._is_done = True
            self._done(outcome, rows)

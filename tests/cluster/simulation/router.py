"""A simulated router: reads by `RangeReads`, serves by the catalogue's map, uploads and changes by transitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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
from tests.cluster.simulation.service_calls import Answer, Asked, PullSegment, Read, Sent, Write
from tests.cluster.simulation.shard import ROW_BYTES
from tests.cluster.simulation.truth import Content, Items, Violation, digest_of, rows_of
from tests.cluster.simulation.world import Process, World

LATE_AFTER = 0.5
LOOKUP_DEADLINE = 5.0
PUBLISH_DEADLINE = 25.0
WRITE_AFTER = 3.0
"""How long a router waits until a shard that is to get rows is taken for lost."""
DTYPE = DTYPES["float32"]


class SimulatedUpload:
    """A version on its way, as `VersionWriter` has it: to all replicas at once; a shard that is lost is replaced."""

    def __init__(self, router: Router, content: Content, ranges: int) -> None:
        self._router = router
        self._content = content
        bounds = segment_bounds(content.rows, ranges)
        self._bounds = [Segment(start, stop, (stop - start) * ROW_BYTES) for start, stop in bounds]
        self._deadline = router.world.now + PUBLISH_DEADLINE
        self._whole: set[tuple[str, str]] = set()
        self._lost: set[str] = set()
        """Shards that have failed: no segment comes back to them."""

    async def run(self) -> str:
        """Place the segments, write them and publish. Returns an error's code, "" if it is published."""
        router, content = self._router, self._content
        begin = partial(begin_upload, content_id=content.content_id, table=content.table, parts=self._bounds)
        code = await router.client.transact(begin)
        segments = () if code else await self._write_all()
        if segments is None or code:
            router.checks.given_up.add(content.content_id)
            router.start(router.end, content.content_id)
            return code or "shard_unavailable"
        whole = tuple(
            replace(one, sha256=digest_of(rows_of(upload_tensor(content.content_id, one)))) for one in segments
        )
        size = content.rows * ROW_BYTES
        made = Version(0, content.content_id, DTYPE, (content.rows,), whole, 1, "", size, content.url)
        code = await router.change(lambda catalogue: publish(catalogue, content.table, made, content.keep))
        router.start(router.end, content.content_id, code)
        return code

    async def _write_all(self) -> tuple[Segment, ...] | None:
        """Write what is not whole until all is. Returns the segments, None if that fails."""
        router, writing = self._router, dict[asyncio.Task[str], tuple[str, str]]()
        while True:
            upload = router.client.catalogue.uploads.get(self._content.content_id)
            if upload is None or router.world.now >= self._deadline:
                break
            places = {(node, self._tensor(one)): one for one in upload.segments for node in one.nodes}
            if self._whole >= places.keys():
                return upload.segments
            for place, segment in places.items():
                if place not in self._whole and place not in writing.values():
                    writing[router.loop.create_task(self._write(segment, place[0]))] = place
            done, _ = await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
            codes = [one.result() for one in done]
            writing = {one: place for one, place in writing.items() if one not in done}
            if any(codes):
                break
        for one in writing:
            one.cancel()
        return None

    def _tensor(self, segment: Segment) -> str:
        return upload_tensor(self._content.content_id, segment)

    async def _write(self, segment: Segment, node: str) -> str:
        """Write a segment to a shard, or have another one take its place. Returns an error's code, or ""."""
        router, tensor = self._router, self._tensor(segment)
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
        answer = None
        if node in catalogue.nodes:
            answer = await router.ask(catalogue.nodes[node].address, asked, WRITE_AFTER)
        if answer is not None and answer.is_done:
            self._whole.add((node, tensor))
            return ""
        self._lost.add(node)
        move = partial(
            move_upload, content_id=self._content.content_id, start=segment.start, old=node, avoid=self._lost
        )
        return await router.client.transact(move)


class Router(Process):
    """A router, from one start to its crash. It has nothing on a disk."""

    def __init__(self, world: World, name: str, database: Database, checks: Checks) -> None:
        super().__init__(world, name, f"{name}:8000")
        self.checks = checks
        self.served = ShardMap()
        self.choice = ReplicaChoice()
        self.client = DatabaseClient(database, self, self.take)
        self.ended: set[str] = set()
        """Uploads of this router that are over. A record of one may come back: that it was begun may arrive late."""
        self._serving = ServingMap()

    def take(self, catalogue: Catalogue) -> None:
        """Serve by a newer catalogue."""
        found = self._serving.of(catalogue)
        self.checks.served(self.address, self.served, found)
        self.served = found
        for content_id in sorted(self.ended & catalogue.uploads.keys()):
            self.start(self.end, content_id)

    async def end(self, content_id: str, code: str = "again") -> None:
        """End an upload, however long it takes."""
        self.ended.add(content_id)
        while code:
            code = await self.client.transact(partial(end_upload, content_id=content_id))

    def receive(self, sender: str, message: Sent) -> None:
        """An answer has come."""
        if isinstance(message, Answer):
            self.take_answer(message)

    async def ask(self, address: str, asked: Asked, seconds: float) -> Answer | None:
        """Ask a shard; None if nobody listens, or no answer comes in time."""
        if not self.world.answers(address, self.machine):
            await asyncio.sleep(0.001)
            return None
        return await super().ask(address, asked, seconds)

    async def change(self, transition: Callable[[Catalogue], Change | None]) -> str:
        """Change the catalogue. Returns an error's code, "" if it is made."""
        code = await self.client.transact(transition)
        if not code:
            self.checks.acknowledged(self.served, self.client.catalogue.revision)
        return code


class Lookup:
    """One lookup by `RangeReads`, begun anew if the version went away or was cut anew.

    Rows are fractions of the table's size. `session` has the sequences by range that the connection has seen.
    """

    def __init__(self, router: Router, reference: str, rows: Sequence[float], session: dict[str, int]) -> None:
        self._router = router
        self._reference = reference
        self._fractions = rows
        self._session = session
        self._seen = dict(session)
        """What the connection had seen when it asked."""
        self._deadline = router.world.now + LOOKUP_DEADLINE

    @property
    def _now(self) -> float:
        return self._router.world.now

    async def run(self) -> tuple[str, Items]:
        """Return the outcome, and the rows."""
        while named := self._router.served.find(self._reference):
            reads = RangeReads(self._router.served, named[1], self._router.choice, self._deadline, LATE_AFTER)
            outcome, rows = await self._read(reads)
            if outcome != "version_gone":
                return outcome, rows
        return "tensor_not_found", ()

    async def _read(self, reads: RangeReads) -> tuple[str, Items]:
        version = reads.version
        rows = [int(fraction * version.rows) for fraction in self._fractions] if version.rows else []
        self._by_range: dict[int, list[int]] = {}
        self._answers: dict[int, tuple[str, int]] = {}
        for row in rows:
            number = next(number for number, one in enumerate(version.ranges) if row < one.stop)
            self._by_range.setdefault(number, []).append(row)
        actions, running = reads.start(self._by_range, self._now), set[asyncio.Task[list[ReadAction]]]()
        while reads.outcome is None:
            for action in actions:
                running |= {self._router.loop.create_task(one) for one in self._acts(reads, action)}
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            actions = [further for one in done for further in one.result()]
        for one in running:
            one.cancel()
        is_done = reads.outcome == "done"
        return reads.outcome, tuple(self._answers[row] for row in rows) if is_done else ()

    def _acts(self, reads: RangeReads, action: ReadAction) -> Iterator[Coroutine[Any, Any, list[ReadAction]]]:
        """What an action does; each returns further actions."""
        match action:
            case AskReplica():
                yield self._ask(reads, action)
                if action.hedge_at < self._deadline:
                    yield self._hedge(reads, action)
            case FetchMap():
                yield self._fetch(reads)
            case Wake(at):
                yield self._wake(reads, at)

    async def _ask(self, reads: RangeReads, asked: AskReplica) -> list[ReadAction]:
        number, replica, one = asked.number, asked.replica, reads.version.ranges[asked.number]
        rows = tuple(row - one.start for row in self._by_range[number])
        read = Read(next(self._router.world.ids), one.tensor, rows, self._session.get(one.tensor, 0))
        answer = await self._router.ask(replica.address, read, asked.late_at - self._now)
        if answer is None:
            return reads.on_failure(number, replica, self._now)
        if answer.rows is None:
            return reads.on_missing_range(number, replica, self._now)
        if reads.on_rows(number, replica):
            self._answers.update(zip(self._by_range[number], answer.rows, strict=True))
            self._see(one.tensor, answer.sequence)
        return []

    def _see(self, tensor: str, sequence: int) -> None:
        if sequence < self._seen.get(tensor, 0):
            raise Violation(f"a connection that has seen {tensor} at {self._seen[tensor]} was answered {sequence}")
        self._session[tensor] = max(sequence, self._session.get(tensor, 0))

    async def _hedge(self, reads: RangeReads, asked: AskReplica) -> list[ReadAction]:
        await asyncio.sleep(asked.hedge_at - self._now)
        action = reads.hedge(asked.number, self._now)
        return [] if action is None else [action]

    async def _fetch(self, reads: RangeReads) -> list[ReadAction]:
        await self._router.client.refresh()
        return reads.on_map_fetched(self._router.served, self._now)

    async def _wake(self, reads: RangeReads, at: float) -> list[ReadAction]:
        await asyncio.sleep(max(0.0, at - self._now))
        return reads.on_wake(self._now)

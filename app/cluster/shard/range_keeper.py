"""Background work that one process of a shard does for its ranges: takeovers, joins, commit notices, lost rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

from app.cluster.catalogue import ranges
from app.cluster.catalogue.listed_segments import Listed
from app.cluster.catalogue.records import RangeRecord
from app.cluster.replication.primary import NOTICE_S, JoinAnswer
from app.cluster.shard.catalogue_follower import CatalogueFollower
from app.cluster.shard.peers import PeerFailed
from app.cluster.shard.range_joins import Joins
from app.cluster.shard.range_log import RangeLog, Words
from app.cluster.shard.range_primary import Primaries
from app.cluster.shard.shard_folder import only_worker
from app.errors import GatherError

LOOK_S: Final = 1.0
_JOINS: Final = 4
"""Maximum number of replicas that may join at the same time."""
_TAKEOVERS: Final = 16
logger = logging.getLogger("gathernd")


@dataclass
class RangeKeeper:
    """Maintain all ranges of the shard `node`, in the process that holds the lock on the file `path`."""

    node: str
    path: Path
    log: RangeLog
    follower: CatalogueFollower
    primaries: Primaries
    joins: Joins
    changed: Event = field(default_factory=Event)
    """Set when the catalogue has changed."""

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(_TAKEOVERS, "takeover")
        self._joining = ThreadPoolExecutor(_JOINS, "join")
        self._running: dict[tuple[str, str], Future[None]] = {}
        self._told: dict[tuple[str, str], tuple[int, int]] = {}
        """The epoch and sequence of the last commit notice that a replica has acknowledged, by range and node."""
        self._waiting: dict[str, tuple[int, float]] = {}
        """For each range whose replica here has a tail, the applied sequence and when it last advanced."""
        self._late: dict[tuple[str, str], float] = {}
        """When a replica was first found not to have acknowledged a commit, by range and node."""
        self._lost: set[str] = set()
        """Ranges whose rows this shard has lost and whose loss it has already logged."""
        self._no_room: dict[tuple[str, str], str] = {}
        """The most recent failures for lack of space, with their reasons."""

    def run(self, is_ready: Callable[[], bool], stop: Event) -> None:
        """Maintain the ranges until `stop` is set. Begins once the service is ready and this process holds the lock."""
        with only_worker(self.path, is_ready, stop) as is_only:
            while is_only and not stop.is_set():
                self.changed.clear()
                try:
                    self._check_ranges()
                except Exception:
                    logger.exception("the ranges of the shard %s could not be checked", self.node)
                self.changed.wait(LOOK_S)

    def lag(self) -> float:
        """Return for how many seconds the slowest replica has not reported that it has applied all committed
        records.
        """
        now = time.monotonic()
        return max((now - since for since in self._late.copy().values()), default=0.0)

    def _check_ranges(self) -> None:
        self._running = {which: work for which, work in self._running.items() if not work.done()}
        self._forget()
        for one in self.follower.open_ranges().values():
            record = one.opened
            assert record is not None
            if record.primary == self.node or self.node in record.in_sync:
                words = self.log.words(one.tensor)
                if words is None:
                    self._begin_work(self._pool, "lost", one.tensor, lambda one=one: self._report_lost_rows(one))  # type: ignore[misc]
                elif record.primary == self.node:
                    self._maintain_led(one, record, words.epoch, words.applied)
                elif record.epoch > ranges.PROPOSED and self._is_waiting(one.tensor, words):
                    self._begin_work(self._joining, "tail", one.tensor, lambda one=one: self._ask(one))  # type: ignore[misc]
            elif self.node in one.segment.nodes:
                self._begin_work(self._joining, "join", one.tensor, lambda one=one: self._join(one))  # type: ignore[misc]

    def _forget(self) -> None:
        """Remove what is recorded about closed ranges and about replicas that this shard no longer notifies."""
        found = self.follower.open_ranges()
        for which in {*self._told.copy(), *self._late.copy()}:
            one = found.get(which[0])
            record = None if one is None else one.opened
            if record is None or record.primary != self.node or which[1] not in record.in_sync:
                self._told.pop(which, None)
                self._late.pop(which, None)
        for tensor in self._waiting.keys() - found.keys():
            self._waiting.pop(tensor)
        for tensor in self._lost.copy():
            if tensor not in found or self.log.words(tensor) is not None:
                self._lost.discard(tensor)

    def _is_waiting(self, tensor: str, words: Words) -> bool:
        """Return whether an in-sync replica must ask its primary what is committed.

        It must do so after its startup, and whenever its tail has not advanced for LOOK_S seconds.
        """
        if not words.is_confirmed:
            return True
        if words.is_settled and words.logged <= words.applied:
            self._waiting.pop(tensor, None)
            return False
        applied, since = self._waiting.get(tensor, (-1, 0.0))
        if applied != words.applied:
            self._waiting[tensor] = words.applied, time.monotonic()
            return False
        return time.monotonic() - since >= LOOK_S

    def _ask(self, one: Listed) -> None:
        """Ask the primary what is committed.

        The primary may believe that everything has been applied here, based on reports from before a power failure.
        """
        self.joins.join(one)

    def _begin_work(self, pool: ThreadPoolExecutor, what: str, tensor: str, work: Callable[[], None]) -> None:
        """Start work in the background, unless it is already running for the range."""
        if (what, tensor) not in self._running:
            self._running[what, tensor] = pool.submit(self._attempt, what, tensor, work)

    def _attempt(self, what: str, tensor: str, work: Callable[[], None]) -> None:
        """Do work; if it fails, the next round repeats it. A lack of space is logged only once."""
        no_room = ""
        try:
            work()
        except (PeerFailed, OSError) as problem:
            logger.debug("%s of %s: %s", what, tensor, problem)
        except GatherError as problem:
            no_room = problem.detail if problem.code == "insufficient_storage" else ""
            is_new = no_room and self._no_room.get((what, tensor)) != no_room
            logger.log(logging.WARNING if is_new else logging.DEBUG, "%s of %s: %s", what, tensor, problem.detail)
        except Exception:
            logger.exception("%s of %s failed", what, tensor)
        if no_room:
            self._no_room[what, tensor] = no_room
        else:
            self._no_room.pop((what, tensor), None)

    def close(self) -> None:
        """Start no more work."""
        for pool in (self._pool, self._joining):
            pool.shutdown(wait=False, cancel_futures=True)

    def _maintain_led(self, one: Listed, record: RangeRecord, epoch: int, applied: int) -> None:
        """Take over a range whose primary is this shard, or tell its replicas what is committed."""
        if not (self.primaries.is_resolved(one.tensor, record.epoch) and epoch == record.epoch):
            self._begin_work(self._pool, "takeover", one.tensor, lambda: self.primaries.begin(one.tensor))
            return
        for node in record.in_sync:
            if node != self.node and self._told.get((one.tensor, node)) != (epoch, applied):
                self._begin_work(self._pool, f"notice to {node}", one.tensor, lambda node=node: self._notice(one, node))  # type: ignore[misc]

    def _notice(self, one: Listed, node: str) -> None:
        """Tell a replica what is committed. A replica that fails to apply it for NOTICE_S leaves the in-sync set."""
        record, state = one.opened, self.log.state(one.tensor)
        if record is None or state is None or state.epoch != record.epoch or state.tail:
            return
        which = one.tensor, node
        if self.primaries.notice(one.tensor, node, state):
            self._told[which] = state.epoch, state.applied
            self._late.pop(which, None)
            return
        since = self._late.setdefault(which, time.monotonic())
        if time.monotonic() - since > NOTICE_S:
            self._late.pop(which, None)
            logger.warning(
                "%s: the replica on %s does not apply committed records and leaves the in-sync set", one.tensor, node
            )
            self.primaries.dismiss(one.tensor, record.epoch, frozenset({node}), "behind")

    def _join(self, one: Listed) -> None:
        """Bring an assigned replica closer to the in-sync set while its primary sends records or orders a copy.

        If no primary has begun yet, a replica that has the uploaded rows joins without one.
        """
        assert one.opened is not None
        if one.opened.epoch == ranges.PROPOSED and self.log.words(one.tensor) is not None:
            self.follower.client.transact(lambda at: ranges.join_unled_range(at, one.tensor, self.node))
            return
        now: Listed | None = one
        while now is not None and now.opened is not None and not self.joins.is_stopping():
            if self.node not in {*now.segment.nodes} - {*now.opened.in_sync}:
                return
            if self.joins.join(now) not in (JoinAnswer.RECORDS, JoinAnswer.COPY):
                self.follower.refresh()
                return
            now = self.follower.open_ranges().get(one.tensor)

    def _report_lost_rows(self, one: Listed) -> None:
        """Record in the catalogue that this shard has lost the rows, if the newest catalogue lists it as in sync."""
        is_known = one.tensor in self._lost
        if is_known and ranges.lose_rows(self.follower.catalogue, one.tensor, self.node) is None:
            return  # no other replica is in sync, so the range waits
        self.follower.refresh()
        if self.log.state(one.tensor) is None:
            if not is_known:
                logger.error("%s: its rows are lost on this shard", one.tensor)
            self._lost.add(one.tensor)
            self.follower.client.transact(lambda at: ranges.lose_rows(at, one.tensor, self.node))

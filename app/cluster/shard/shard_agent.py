"""Carries out what a coordinator orders a shard to hold, at a service on the same machine; `held_ranges` decides.

It tells the coordinator every second what the service has, takes its orders, and copies, stamps and removes ranges by
the service's own routes. Rows that a router publishes come to the service straight from the router: the agent finds
them in its list of tensors. Nothing is lost when it ends: what the service has, and the stamps, are on the disk.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from ssl import SSLContext
from threading import Event, Lock
from typing import Final

import orjson

from app.cluster.coordinator.coordinator_link import CoordinatorLink, exchange
from app.cluster.coordinator.message_json import BadMessage
from app.cluster.coordinator.messages import Drop, Held, Hold, Message, NotHeld, RangeKey, Refused, Stamp
from app.cluster.shard.held_ranges import UNSTAMPED, Copy, HeldRanges, Remove, SetStamp, ShardAction
from app.cluster.shard.read_again import read_again
from app.cluster.shard.shard_http import ShardClient, ShardFailed
from app.imports.source_urls import AllowedSources
from app.store.files.whole_file import write_whole_file

INVENTORY_S: Final = 1.0
LOOK_S: Final = 0.2
"""How often the list of tensors is read while rows are awaited."""
_THREADS: Final = 4
_NO_SOURCES: Final = AllowedSources(())
logger = logging.getLogger(__name__)


class StampFile:
    """The stamps of a shard's ranges, in one file, replaced durably at each change. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.stamps: dict[str, Stamp] = {}
        if path.exists():
            self.stamps = {name: Stamp(*both) for name, both in orjson.loads(path.read_bytes()).items()}

    def set(self, key: RangeKey, stamp: Stamp) -> None:
        """Write the stamp of a range."""
        self.stamps[key.tensor] = stamp
        self._write()

    def forget(self, key: RangeKey) -> None:
        """A range is gone."""
        if self.stamps.pop(key.tensor, None) is not None:
            self._write()

    def get(self, key: RangeKey) -> Stamp:
        """The stamp of a range; the lowest of all where it has none."""
        return self.stamps.get(key.tensor, UNSTAMPED)

    def _write(self) -> None:
        stamps = {name: (stamp.term, stamp.number) for name, stamp in self.stamps.items()}
        write_whole_file(self._path, orjson.dumps(stamps))


def next_start(path: Path) -> int:
    """A number for a start, higher than that of the start before, which the file has: clocks go backwards, too.

    Where the file is lost with its disk the time alone says it. Raises OSError.
    """
    try:
        before = int(path.read_bytes()[:20])
    except (FileNotFoundError, ValueError):
        before = 0
    number = max(time.time_ns(), before + 1)
    write_whole_file(path, b"%d" % number)
    return number


class ShardAgent:
    """The agent of the service at `address`, by which routers and other shards know it; `folder` is its own.

    Shards are asked with `key`, over TLS where `tls` is given. What no other shard has is read again from where it was
    imported, if `allowed` covers that.
    """

    def __init__(
        self,
        node: str,
        address: str,
        folder: Path,
        capacity: int,
        link: CoordinatorLink,
        key: str | None,
        tls: SSLContext | None = None,
        allowed: AllowedSources = _NO_SOURCES,
    ) -> None:
        self.node = node
        self._address = address
        self._capacity = capacity
        self._link = link
        self._key = key
        self._tls = tls
        self._allowed = allowed
        self._own = ShardClient(address, key, tls=tls)
        self._stamps = StampFile(folder / "stamps.json")
        self._started = next_start(folder / "started")
        self._lock = Lock()
        """Of all that follows."""
        self._held: HeldRanges | None = None
        self._work: dict[RangeKey, deque[Copy | SetStamp | Remove]] = {}
        self._worked: set[RangeKey] = set()
        """The ranges of which something was written or removed since the list of tensors was asked for last."""
        self._outgoing: list[Message] = []
        self._pool = ThreadPoolExecutor(_THREADS, "range")

    def run(self, stop: Event) -> None:
        """Run until `stop` is set."""
        told = 0.0
        while not stop.is_set():
            try:
                if self._held is None:
                    self._begin()
                assert self._held is not None
                self._look()
                now = time.monotonic()
                with self._lock:
                    messages, self._outgoing = self._outgoing, []
                    pause = LOOK_S if self._held.awaits_rows or self._work else INVENTORY_S / 2
                    if now - told >= INVENTORY_S or messages:
                        messages = [self._held.inventory(), *messages]
                        told = now
                self._receive(exchange(self._link, self._address, messages, pause))
            except (OSError, ShardFailed, BadMessage) as error:
                logger.warning("shard %s: %s", self.node, error)
                stop.wait(INVENTORY_S)
        self._pool.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """What the service has now is what is held. Raises ShardFailed."""
        held = HeldRanges(self.node, self._address, self._started, self._capacity)
        for one in self._own.stored():
            held.appeared(one, self._stamps.get(one.key))
        self._held = held

    def _look(self) -> None:
        """Find ranges that routers have put, and those that are gone. Raises ShardFailed."""
        with self._lock:
            self._worked.clear()
        found = self._own.stored()
        with self._lock:
            assert self._held is not None
            unsure = self._worked.union(self._work)
            for one in found:
                if one.key not in unsure:
                    self._do(self._held.appeared(one))
            for key in self._held.whole - {one.key for one in found} - unsure:
                self._held.disappeared(key)

    def _receive(self, messages: Sequence[Message]) -> None:
        with self._lock:
            assert self._held is not None
            for message in messages:
                match message:
                    case Hold():
                        self._do(self._held.hold(message))
                    case Drop():
                        self._do(self._held.drop(message))
                    case Refused(detail=detail):
                        logger.error("the coordinator does not take shard %s, since %s", self.node, detail)
                    case _:
                        logger.warning("shard %s: %s is not for a shard", self.node, type(message).__name__)

    def _do(self, actions: Sequence[ShardAction]) -> None:
        """Begin actions: those of one range are carried out one after the other, in this order."""
        for action in actions:
            if isinstance(action, Held | NotHeld):
                self._outgoing.append(action)
                continue
            queue = self._work.get(action.key)
            if queue is not None:
                queue.append(action)
                continue
            self._work[action.key] = deque((action,))
            self._pool.submit(self._carry_out, action.key)

    def _carry_out(self, key: RangeKey) -> None:
        while True:
            with self._lock:
                assert self._held is not None
                queue = self._work[key]
                self._worked.add(key)
                if not queue:
                    del self._work[key]
                    return
                action = queue.popleft()
            done: Sequence[ShardAction] = ()
            try:
                done = self._carry_out_one(action)
            except (OSError, ShardFailed) as error:
                logger.warning("shard %s: %s of %s: %s", self.node, type(action).__name__, key.tensor, error)
                if isinstance(action, Copy):
                    with self._lock:
                        self._held.not_copied(action)
            except Exception:  # the next order begins it anew
                logger.exception("shard %s: %s failed", self.node, type(action).__name__)
            with self._lock:
                self._do(done)
                if (answer := self._held.answer(key)) is not None and not isinstance(action, Remove):
                    self._outgoing.append(answer)

    def _carry_out_one(self, action: Copy | SetStamp | Remove) -> Sequence[ShardAction]:
        """Raises OSError and ShardFailed."""
        held = self._held
        assert held is not None
        match action:
            case Copy(key, stamp, source=source, url=url, digest=digest):
                if source:
                    taken = self._own.copy_from(ShardClient(source, self._key, tls=self._tls), key)
                else:
                    taken = read_again(self._own, key, url, digest, self._allowed)
                if digest not in ("", taken):
                    self._own.remove(key)
                    raise ShardFailed(f"{source or url} has other rows: their digest is {taken} and not {digest}")
                with self._lock:
                    self._stamps.set(key, stamp)
                    return held.copied(action, taken)
            case SetStamp(key, stamp):
                with self._lock:
                    self._stamps.set(key, stamp)
                    held.stamped(key, stamp)
            case Remove(key):
                self._own.remove(key)
                with self._lock:
                    self._stamps.forget(key)
        return ()

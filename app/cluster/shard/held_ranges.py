"""A shard's side of the protocol, without I/O: which ranges it has, and what it does with the coordinator's orders.

Who drives it does the actions and reports how they end:

    Copy        get the rows from another shard or a URL, check them, and write them durably: `stored` or `not_copied`
    SetStamp    write the stamp of a range durably: `stamped`
    Remove      delete the rows of a range
    Send        send a message

What is written and removed of one range is written and removed in the order in which it was begun. A range on the disk
is whole, or is not there after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from app import __version__
from app.cluster.coordinator.messages import (
    Drop,
    Held,
    HeldRange,
    Hold,
    Inventory,
    NotHeld,
    RangeKey,
    Send,
    Stamp,
    Write,
    Written,
)


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range on the disk: the stamp of the order that it was written or stamped with last, and its digest."""

    key: RangeKey
    stamp: Stamp
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Get a range from the shard at `source`, or from `url`, and write it with `stamp`.

    Rows whose digest is not `digest`, where that is not "", are not taken.
    """

    key: RangeKey
    stamp: Stamp
    token: int
    size: int
    source: str
    url: str
    digest: str


@dataclass(frozen=True, slots=True)
class SetStamp:
    """Write the stamp of a range that is on the disk."""

    key: RangeKey
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a range, if it is there."""

    key: RangeKey


ShardAction: TypeAlias = Send | Copy | SetStamp | Remove
UNSTAMPED: Final = Stamp(0, 0)
"""The stamp of a range that no order was given for: any order is later."""


@dataclass(slots=True)
class _Range:
    stamp: Stamp
    size: int
    durable_stamp: Stamp | None = None
    """The stamp on the disk, None until the range is whole there."""
    digest: str = ""
    next_source: int = 0
    writing: set[int] = field(default_factory=set)
    """The tokens of what is being written."""
    told: list[str] = field(default_factory=list)
    """Who is to hear `Written` once it is whole."""


class HeldRanges:
    """The ranges of one shard. `stored` are those on its disk at its start; `started` grows with every start."""

    def __init__(
        self, node: str, address: str, started: int, capacity: int, stored: Iterable[StoredRange] = ()
    ) -> None:
        self.node = node
        self.address = address
        self._started = started
        self._count = 0
        self._capacity = capacity
        self._token = 0
        self._ranges = {one.key: _Range(one.stamp, one.size, one.stamp, one.digest) for one in stored}

    def is_whole(self, key: RangeKey) -> bool:
        """Whether a read of this range can be answered; if not, the answer is `StaleMap`."""
        found = self._ranges.get(key)
        return found is not None and found.durable_stamp is not None

    def inventory(self) -> Inventory:
        """What to tell the coordinator now."""
        self._count += 1
        held = tuple(
            HeldRange(key, one.stamp, one.durable_stamp is not None, one.size) for key, one in self._ranges.items()
        )
        return Inventory(self.node, self.address, self._started, self._count, self._capacity, held, __version__)

    # Orders of the coordinator

    def hold(self, sender: str, order: Hold) -> list[ShardAction]:
        """Have a range: answer that it is there, or get it."""
        found = self._ranges.get(order.key)
        if found is not None and order.stamp < found.stamp:
            return []
        actions: list[ShardAction] = []
        if found is not None and found.durable_stamp is not None and order.digest not in ("", found.digest):
            del self._ranges[order.key]  # what is there is damaged: as if it were not
            actions.append(Remove(order.key))
            found = None
        if found is None:
            if not self._has_room(order.size):
                return [*actions, Send(sender, NotHeld(self.node, order.key, order.stamp))]
            found = self._ranges[order.key] = _Range(order.stamp, order.size)
        found.stamp = order.stamp
        if found.durable_stamp == order.stamp:
            actions.append(Send(sender, Held(self.node, order.key, order.stamp, found.digest)))
        elif found.durable_stamp is not None:
            actions.append(SetStamp(order.key, order.stamp))
        elif not found.writing and (order.sources or order.url):
            actions.append(self._copy(found, order))
        return actions

    def drop(self, order: Drop) -> list[ShardAction]:
        """Give a range up, unless a later order was to hold it."""
        found = self._ranges.get(order.key)
        if found is None or order.stamp < found.stamp:
            return []
        del self._ranges[order.key]
        return [Remove(order.key)]

    def _copy(self, found: _Range, order: Hold) -> Copy:
        """From the next of its sources; the URL comes after all of them."""
        ways = [(source, "") for source in order.sources] + ([("", order.url)] if order.url else [])
        source, url = ways[found.next_source % len(ways)]
        found.next_source += 1
        token = self._begin_writing(found)
        return Copy(order.key, order.stamp, token, order.size, source, url, order.digest)

    # Rows that a router writes

    def write(self, sender: str, asked: Write) -> tuple[int, list[ShardAction]]:
        """Whether the rows may be written: a token for `stored`, 0 where they may not, or are there already.

        While another write or copy of the range is under way the rows are not taken; `Written` comes when that ends.
        """
        found = self._ranges.get(asked.key)
        if found is not None and found.durable_stamp is not None:
            return 0, [Send(sender, Written(asked.key, self.node))]
        if found is None:
            if not self._has_room(asked.size):
                return 0, []
            found = self._ranges[asked.key] = _Range(asked.stamp, asked.size)
        if asked.stamp < found.stamp:
            return 0, []
        found.stamp = asked.stamp
        if sender not in found.told:
            found.told.append(sender)
        return (0 if found.writing else self._begin_writing(found)), []

    # Rows that come by another way than a `Write`: a router puts them to the service, whose list of tensors is read

    def appeared(self, key: RangeKey, size: int, digest: str) -> list[ShardAction]:
        """A range is whole and durable on the disk, as whoever reads the list of it says again and again."""
        found = self._ranges.get(key)
        if found is None:
            self._ranges[key] = _Range(UNSTAMPED, size, UNSTAMPED, digest)
            return []
        if found.durable_stamp is not None or found.writing:
            return []
        found.durable_stamp, found.digest = UNSTAMPED, digest
        return [SetStamp(key, found.stamp)]

    def disappeared(self, key: RangeKey) -> None:
        """A range that was whole is no more on the disk, and no action has removed it."""
        self._ranges.pop(key, None)

    @property
    def whole(self) -> set[RangeKey]:
        """The ranges that are whole and durable."""
        return {key for key, one in self._ranges.items() if one.durable_stamp is not None}

    @property
    def awaits_rows(self) -> bool:
        """Whether a range is to come from a router."""
        return any(one.durable_stamp is None and not one.writing for one in self._ranges.values())

    def answer(self, key: RangeKey) -> Held | None:
        """What to tell the coordinator of a range that is whole with the stamp of the last order; None of others."""
        found = self._ranges.get(key)
        if found is None or found.durable_stamp != found.stamp:
            return None
        return Held(self.node, key, found.stamp, found.digest)

    # How actions ended

    def stored(self, key: RangeKey, token: int, stamp: Stamp, digest: str) -> list[ShardAction]:
        """A copy or a write is durable, with this stamp."""
        found = self._ranges.get(key)
        if found is None:
            return [Remove(key)]  # it was given up while it was on its way
        if token not in found.writing:
            return []  # it was given up and ordered anew: another copy or write will end
        found.writing.discard(token)
        found.durable_stamp, found.digest = stamp, digest
        told, found.told = found.told, []
        return [Send(router, Written(key, self.node)) for router in told]

    def not_copied(self, key: RangeKey, token: int) -> list[ShardAction]:
        """A copy or a write has failed; the coordinator's next `Hold` begins another one."""
        found = self._ranges.get(key)
        if found is not None:
            found.writing.discard(token)
        return []

    def stamped(self, key: RangeKey, stamp: Stamp) -> list[ShardAction]:
        """The stamp is durable."""
        found = self._ranges.get(key)
        if found is not None and found.durable_stamp is not None:
            found.durable_stamp = max(found.durable_stamp, stamp)
        return []

    def _begin_writing(self, found: _Range) -> int:
        self._token += 1
        found.writing.add(self._token)
        return self._token

    def _has_room(self, size: int) -> bool:
        return sum(one.size for one in self._ranges.values()) + size <= self._capacity

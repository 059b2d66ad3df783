"""A shard's side of the protocol, without I/O: which ranges it has, and what it does with the coordinator's orders.

Who drives it does the actions and reports how they end:

    Copy            get the rows from another shard or a URL, check them, and write them durably: `copied`, `not_copied`
    SetStamp        write the stamp of a range durably: `stamped`
    Remove          delete the rows of a range
    Held, NotHeld   send this message to the coordinator

Rows that a router publishes come by none of these: the router puts them to the service on the machine, and the driver
reports what it finds in the service's list of tensors: `appeared`, `disappeared`. Actions on one range are done in the
order in which they were begun. A range on the disk is whole, or is not there after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from app import __version__
from app.cluster.coordinator.messages import Drop, Held, HeldRange, Hold, Inventory, NotHeld, RangeKey, Stamp


class StoredRange(NamedTuple):
    """A range that is whole on the disk: its size in bytes and the digest of its rows."""

    key: RangeKey
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


ShardAction: TypeAlias = Held | NotHeld | Copy | SetStamp | Remove
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
    copying: int = 0
    """The token of the copy that is under way, 0 without one."""


class HeldRanges:
    """The ranges of one shard; `started` grows with every start."""

    def __init__(self, node: str, address: str, started: int, capacity: int) -> None:
        self.node = node
        self.address = address
        self._started = started
        self._count = 0
        self._capacity = capacity
        self._token = 0
        self._ranges: dict[RangeKey, _Range] = {}

    def inventory(self) -> Inventory:
        """What to tell the coordinator now."""
        self._count += 1
        held = tuple(
            HeldRange(key, one.stamp, one.durable_stamp is not None, one.size) for key, one in self._ranges.items()
        )
        return Inventory(self.node, self.address, self._started, self._count, self._capacity, held, __version__)

    # Orders of the coordinator

    def hold(self, order: Hold) -> list[ShardAction]:
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
            if sum(one.size for one in self._ranges.values()) + order.size > self._capacity:
                return [*actions, NotHeld(self.node, order.key, order.stamp)]
            found = self._ranges[order.key] = _Range(order.stamp, order.size)
        found.stamp = order.stamp
        if found.durable_stamp == order.stamp:
            actions.append(Held(self.node, order.key, order.stamp, found.digest))
        elif found.durable_stamp is not None:
            actions.append(SetStamp(order.key, order.stamp))
        elif not found.copying and (order.sources or order.url):
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
        self._token += 1
        found.copying = self._token
        return Copy(order.key, order.stamp, self._token, order.size, source, url, order.digest)

    # What is on the disk

    def appeared(self, one: StoredRange, stamp: Stamp = UNSTAMPED) -> list[ShardAction]:
        """A range is whole and durable on the disk, as whoever reads the list of it says again and again.

        `stamp` is the one that is durable with a range that was there at the start.
        """
        found = self._ranges.get(one.key)
        if found is None:
            self._ranges[one.key] = _Range(stamp, one.size, stamp, one.digest)
            return []
        if found.durable_stamp is not None or found.copying:
            return []
        found.durable_stamp, found.digest = stamp, one.digest
        return [SetStamp(one.key, found.stamp)]

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
        return any(one.durable_stamp is None and not one.copying for one in self._ranges.values())

    def answer(self, key: RangeKey) -> Held | None:
        """What to tell the coordinator of a range that is whole with the stamp of the last order; None of others."""
        found = self._ranges.get(key)
        if found is None or found.durable_stamp != found.stamp:
            return None
        return Held(self.node, key, found.stamp, found.digest)

    # How actions ended

    def copied(self, copy: Copy, digest: str) -> list[ShardAction]:
        """A copy is durable, with its stamp."""
        found = self._ranges.get(copy.key)
        if found is None:
            return [Remove(copy.key)]  # it was given up while it was on its way
        if copy.token == found.copying:  # else it was given up and ordered anew: another copy will end
            found.copying, found.durable_stamp, found.digest = 0, copy.stamp, digest
        return []

    def not_copied(self, copy: Copy) -> None:
        """A copy has failed; the coordinator's next `Hold` begins another one."""
        found = self._ranges.get(copy.key)
        if found is not None and copy.token == found.copying:
            found.copying = 0

    def stamped(self, key: RangeKey, stamp: Stamp) -> None:
        """The stamp is durable."""
        found = self._ranges.get(key)
        if found is not None and found.durable_stamp is not None:
            found.durable_stamp = max(found.durable_stamp, stamp)

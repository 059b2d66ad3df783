"""The messages between coordinator, shards and routers. They may be lost, late, repeated or in another order.

    shard -> coordinator     Inventory, Held, NotHeld
    coordinator -> shard     Hold, Drop
    router -> coordinator    MapRequest, Publish, Change
    coordinator -> router    MapAnswer, Placed, Published, Changed, Refused

docs/cluster-protocol.md describes the protocol. Messages carry no rows: routers and shards read and write rows through
the routes of the service on each machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.cluster.shard_map import ShardMap, shard_tensor


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """The place of a coordinator's order among all orders: the coordinator's term, then its number within it.

    A term is of one coordinator alone, so that no two orders have the same stamp.
    """

    term: int
    number: int


@dataclass(frozen=True, slots=True, order=True)
class RangeKey:
    """What a shard may hold: rows `start` to `stop` - 1 of one content. Two ranges with equal keys have equal rows."""

    content_id: str
    start: int
    stop: int

    @property
    def tensor(self) -> str:
        """The name under which shards hold it."""
        return shard_tensor(self.content_id, self.start, self.stop)


@dataclass(frozen=True, slots=True)
class HeldRange:
    """A range as a shard lists it: the stamp of the last order to hold it, and whether it is whole and durable.

    `size` is the bytes that it takes.
    """

    key: RangeKey
    stamp: Stamp
    whole: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the shard on a machine has, told every second; it says, too, that the shard lives.

    `started` grows with each start of the shard and `count` with each inventory: an older one is not heeded.
    """

    node: str
    address: str
    started: int
    count: int
    capacity: int
    """Bytes that the shard may hold in all."""
    held: tuple[HeldRange, ...]
    release: str = ""
    """The version of the service, "" where one does not say it yet; so below. See `releases`."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The order to hold a range. It is repeated until `Held` with its stamp comes.

    Where the shard does not have the range it copies it from one of `sources`, addresses of other shards, else reads it
    from `url`; with neither it waits until a router has written the rows to the service there.
    """

    key: RangeKey
    stamp: Stamp
    size: int
    """Bytes that the range takes."""
    sources: tuple[str, ...] = ()
    url: str = ""
    digest: str = ""
    """What `Held` will say where the rows are the right ones, "" where it is not known yet."""


@dataclass(frozen=True, slots=True)
class Held:
    """The shard has the range whole and durable, and no order older than `stamp` will make it drop it."""

    node: str
    key: RangeKey
    stamp: Stamp
    digest: str


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The shard cannot hold the range: there is no room for it."""

    node: str
    key: RangeKey
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Drop:
    """The order to drop a range, not heeded by a shard that was told to hold it by a later order."""

    key: RangeKey
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class MapRequest:
    """Asks for the map, if it is newer than generation `known`."""

    known: int
    release: str = ""


@dataclass(frozen=True, slots=True)
class MapAnswer:
    """The map of the last generation that is durable."""

    map: ShardMap


@dataclass(frozen=True, slots=True)
class Publish:
    """Asks where the rows of a new version go; sent again, whether it is published. Each upload has one content id.

    `known` is the generation of the router's map when it first sent this; the coordinator recognizes a late repetition
    by it.
    """

    content_id: str
    table: str
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int
    keep: int
    known: int
    url: str = ""
    """Where the shards read the rows themselves; "" where the router writes them."""
    sha256: str = ""
    created: int = 0
    """When the upload began, and, once all rows have come, when they had; in nanoseconds since 1970."""
    expected: str = "*"
    """The content that must be current when the version is published: "" none at all, "*" any or none."""
    size: int = 0
    """Bytes of all items; `row_bytes` is about as many for a row, where rows differ."""
    origin: str = ""
    """Where the rows, which the router writes, may be read again when no replica is left: URL or URL#TENSOR."""


@dataclass(frozen=True, slots=True)
class Target:
    """A shard that is to get a range of a new version, and the stamp with which to write it."""

    key: RangeKey
    node: str
    address: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Placed:
    """Which shards are to get the rows of a new version: the router writes to each of them."""

    content_id: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """The new version is in the map, under this number."""

    content_id: str
    number: int
    map: ShardMap


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the map other than publishing. One `request_id`, one attempt, whose repetitions are equal.

    `known` is the generation of the map that the router had when it sent this first. A change of an alias or a node is
    refused with `stale_map` where another one of the same came later, so that no late repetition undoes that.

        what            subject     value
        put_alias       the alias   the version, written NAME@7
        remove_alias    the alias   ""
        remove          the table   numbers of versions, with commas
        drain, undrain  the node    ""
    """

    request_id: str
    what: Literal["put_alias", "remove_alias", "remove", "drain", "undrain"]
    subject: str
    value: str
    known: int
    at: int = 0
    """When it was sent first, in nanoseconds since 1970: the time of an alias."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The change is in the map."""

    request_id: str
    map: ShardMap


@dataclass(frozen=True, slots=True)
class Refused:
    """A publishing (by its content id) or a change (by its request id) that is not made.

    `stale_map`: the router fetches the map and asks anew, under another id. `version_mismatch` answers an inventory, by
    its node, or a request for the map, by "": whoever sent it is not heeded.
    """

    request_id: str
    code: str
    detail: str


Message: TypeAlias = (
    Inventory
    | Hold
    | Held
    | NotHeld
    | Drop
    | MapRequest
    | MapAnswer
    | Publish
    | Placed
    | Published
    | Change
    | Changed
    | Refused
)


@dataclass(frozen=True, slots=True)
class Send:
    """The action to send a message to an address."""

    to: str
    message: Message

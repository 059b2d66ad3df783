"""An order to pull a segment: the body of `POST /shard/segments/{tensor}`. `read_order` parses all orders to shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from app.cluster.shard_map import DTypeByName
from app.errors import invalid_field
from app.keys.key_column import KeyType

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Order = TypeVar("Order")


@dataclass(frozen=True, slots=True)
class PullSource:
    """A shard that has the rows: all of its resident tensor `tensor`, or only rows `rows[0]` to `rows[1]` - 1 of it.

    If `node` is set and the shard at `address` has a different name, no rows are read from it.
    """

    address: str
    tensor: str
    rows: tuple[Count, Count] | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class PullOrder:
    """An order to pull a segment of `shape`, with `size` bytes (0 if unknown) and the digest `sha256` ("" for any).

    If `keys` is set, each row has a key of that type; sources send the keys before the rows, and `size` includes the
    keys and their index. The digest is computed by `shard_map.digest_of`. The sources are tried in order. If all of
    them fail, rows `origin_rows` of the file at `origin` (a URL or URL#TENSOR) are tried. `fence` is the reconciler's
    fencing token. It is None if the segment belongs to a router's own upload; in that case, the upload's catalogue
    record protects the segment from being dropped.
    """

    fence: Count | None
    dtype: DTypeByName
    shape: tuple[Count, ...]
    size: Count = 0
    sha256: str = ""
    sources: tuple[PullSource, ...] = ()
    origin: str = ""
    origin_rows: tuple[Count, Count] = (0, 0)
    keys: KeyType | None = None

    def to_json(self) -> bytes:
        """Return the request body."""
        return _ADAPTER.dump_json(self)

    @staticmethod
    def from_json(body: bytes) -> PullOrder:
        """Parse a request body. Unknown members are ignored. Raises invalid_field."""
        return read_order(_ADAPTER, body)


_ADAPTER: Final = TypeAdapter(PullOrder)


def read_order(order: TypeAdapter[Order], text: bytes) -> Order:
    """Parse an order to a shard. Unknown members are ignored. Raises invalid_field."""
    try:
        return order.validate_json(text, extra="ignore")
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = "".join(f"/{step}" for step in first["loc"])
        raise invalid_field(place, f"the order is not sound: {first['msg']}") from None

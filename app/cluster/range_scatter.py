"""A scatter to one range on its way from a router to the range's primary, and the primary's answer.

The body of `POST /shard/ranges/{tensor}/scatter` is a line of JSON, padded with spaces so that what follows is aligned
to 8 bytes, then the row numbers (little-endian int64), then the updates (row-major, little endian).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from app.cluster.shard_map import DTypeByName
from app.errors import GatherError, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.operator_signature import Reduction

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
MOST_HEAD: Final = 1 << 12
"""Most bytes of the line of JSON."""


@dataclass(frozen=True, slots=True)
class ScatterOrder:
    """What the line of JSON says: `count` updates of `width` items each, combined by `reduction`.

    Seen as [slices, width], the range takes update number i at the slice that row number i names. `epoch` is the one
    that the router knows. `key` is always set: the router draws one if its caller gave none. `digest` tells the whole
    request from others with this key. With `if_sequence` the scatter is made only if the range is at that sequence.
    """

    epoch: Count
    dtype: DTypeByName
    count: Count
    width: Count
    reduction: Reduction
    key: str
    digest: str
    if_sequence: Count | None = None


@dataclass(frozen=True, slots=True)
class RangeScatter:
    """A scatter to one range: `rows` are int64 and within the range, `updates` flat items of the range's type."""

    order: ScatterOrder
    rows: NDArray[np.int64]
    updates: NDArray[Any]

    def pieces(self) -> list[Buffer]:
        """The body, of which the arrays are not copied."""
        head = _ORDER.dump_json(self.order)
        head += b" " * (-(len(head) + 1) % 8) + b"\n"
        arrays = (np.ascontiguousarray(self.rows, "<i8"), np.ascontiguousarray(self.updates))
        return [head, *(one.reshape(-1).view(np.uint8).data for one in arrays if one.size)]

    @staticmethod
    def from_body(body: Buffer) -> RangeScatter:
        """Read a body; the arrays share its memory. Raises invalid_field."""
        line = bytes(memoryview(body)[:MOST_HEAD])
        end = line.find(b"\n")
        if end < 0:
            raise invalid_field("/body", f"the first {MOST_HEAD} bytes have no end of a line")
        try:
            order = _ORDER.validate_json(line[:end], extra="ignore")
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            place = "".join(f"/{step}" for step in first["loc"])
            raise invalid_field(place, f"the order is not sound: {first['msg']}") from None
        start, items = end + 1, order.count * order.width
        middle = start + 8 * order.count
        if len(body) != middle + items * order.dtype.item_size:
            raise _wrong_size(len(body), order)
        rows = np.frombuffer(body, np.int64, order.count, start)
        return RangeScatter(order, rows, np.frombuffer(body, order.dtype.numpy, items, middle))


@dataclass(frozen=True, slots=True)
class RangeScattered:
    """A primary's answer: the range is at `sequence`, at `epoch`.

    `repeated` says that the scatter was made before, by a request with the same key, after which the range was at
    `sequence`.
    `refused` says that the range is not at `if_sequence`, and that nothing was done.
    """

    sequence: Count
    epoch: Count
    repeated: bool = False
    refused: bool = False

    def to_json(self) -> bytes:
        """The body of the answer."""
        return _ANSWER.dump_json(self)

    @staticmethod
    def from_json(body: Buffer) -> RangeScattered:
        """Read a body. Raises ValueError."""
        return _ANSWER.validate_json(bytes(body), extra="ignore")


_ORDER: Final = TypeAdapter(ScatterOrder)
_ANSWER: Final = TypeAdapter(RangeScattered)


def _wrong_size(size: int, order: ScatterOrder) -> GatherError:
    what = f"{order.count} updates of {order.width} items of {order.dtype.name}"
    return invalid_field("/body", f"the body has {size} bytes, which is not what {what} take")

"""An order to pull a segment: the body of `POST /shard/segments/{tensor}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from app.cluster.shard_map import DTypeByName
from app.errors import GatherError, invalid_field
from app.keys.key_column import KeyType

Count = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass(frozen=True, slots=True)
class PullSource:
    """A shard that has the rows: its resident tensor `tensor`, whole or its rows `rows[0]` to `rows[1]` - 1.

    If `node` is not "", a shard with another name at `address` is not read from.
    """

    address: str
    tensor: str
    rows: tuple[Count, Count] | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class PullOrder:
    """A segment of `shape`, `size` bytes (0: unknown) with the digest `sha256` ("": any).

    With `keys`, their type, each row has a key, which the sources send before the rows; `size` includes keys and their
    index. The digest is that of `shard_map.digest_of`. The sources are tried in order; rows `origin_rows` of the file
    at `origin`, URL or URL#TENSOR, come after them. `fence` is the reconciler's; None for a segment of a router's own
    upload, whose record in the catalogue keeps reconcilers from dropping it.
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
        """The body of the request."""
        return _ADAPTER.dump_json(self)

    @staticmethod
    def from_json(body: bytes) -> PullOrder:
        """Parse a body; unknown members are ignored. Raises invalid_field."""
        try:
            return _ADAPTER.validate_json(body, extra="ignore")
        except ValidationError as problem:
            raise _refusal(problem) from None


_ADAPTER: Final = TypeAdapter(PullOrder)


def _refusal(problem: ValidationError) -> GatherError:
    first = problem.errors(include_url=False)[0]
    return invalid_field("".join(f"/{step}" for step in first["loc"]), f"the order is not sound: {first['msg']}")

"""The one cache of validated requests: what a document said, by the route and the bytes that said it.

Callers repeat themselves: their requests differ in the items of their arrays, in the lengths of these, and in nothing
else. The envelope is a request without those; a request whose envelope is known is not validated again. Refusals are
not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.tensors.gather_call import Encoding

LONGEST: Final = 1 << 14
"""Bytes of the longest envelope that is kept: of a lookup of two hundred features."""
_OBJECTS: Final = 48
"""Bytes that a byte of an envelope takes as key, validated fields and descriptions of arrays."""
_MOST: Final = 1 << 24
"""Bytes of memory that the cache holds at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Validated:
    """A document that was found right: its fields, the arguments that its call has beside arrays, and its arrays.

    `arrays` has the name and the description of each. `encoding` is that of a JSON answer, and `ready` what the format
    has worked out of the document.
    """

    fields: Any
    arguments: dict[str, Any]
    arrays: tuple[tuple[str, Any], ...]
    encoding: Encoding = "values"
    ready: Any = None


class EnvelopeCache(dict[tuple[Any, bytes], Validated]):
    """A dict by route and envelope that holds at most `most` bytes: a further envelope empties it first."""

    __slots__ = ("_held", "most")

    def __init__(self, most: int = _MOST) -> None:
        super().__init__()
        self.most = most
        self._held = 0

    def keep(self, route: Any, envelope: bytes, validated: Validated) -> None:
        """Keep what a request said, unless its envelope is too long."""
        if len(envelope) > LONGEST:
            return
        size = _OBJECTS * len(envelope)
        if self._held + size > self.most:
            self.clear()
            self._held = 0
        self._held += size
        self[route, envelope] = validated


envelopes: Final = EnvelopeCache()


def has_plain_shape(described: Any) -> bool:
    """Tell whether the sizes of a shape are written so that any JSON library reads them as they are meant."""
    return all(type(size) is int and size < 1 << 63 for size in described.get("shape") or ())

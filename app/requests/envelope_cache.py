"""The cache of validated requests, by route and envelope.

A caller's requests often differ only in the items and the lengths of their arrays. The envelope is what remains of a
request without these items and lengths. A request whose envelope is cached is not validated again. Refusals are not
cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.tensors.gather_call import Encoding

LONGEST: Final = 1 << 14
"""Maximum size in bytes of a cached envelope; a lookup of two hundred features has this size."""
_OBJECTS: Final = 48
"""Bytes of memory per byte of an envelope, for the key, the validated fields and the descriptions of arrays."""
_MOST: Final = 1 << 24
"""Maximum bytes of memory of the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Validated:
    """A valid document: its fields, the arguments of its call other than arrays, and its arrays.

    `arrays` holds the name and the description of each array. `encoding` is the encoding of a JSON response. `ready` is
    the result of any other work that the format has done on the document.
    """

    fields: Any
    arguments: dict[str, Any]
    arrays: tuple[tuple[str, Any], ...]
    encoding: Encoding = "values"
    ready: Any = None


class EnvelopeCache(dict[tuple[Any, bytes], Validated]):
    """A dict keyed by route and envelope, of at most `most` bytes.

    It is cleared when another envelope would exceed that size.
    """

    __slots__ = ("_held", "most")

    def __init__(self, most: int = _MOST) -> None:
        super().__init__()
        self.most = most
        self._held = 0

    def keep(self, route: Any, envelope: bytes, validated: Validated) -> None:
        """Cache a validated request, unless its envelope is too long."""
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
    """Return True if all sizes of a shape are plain integers below 2**63, which every JSON library reads exactly."""
    return all(type(size) is int and size < 1 << 63 for size in described.get("shape") or ())

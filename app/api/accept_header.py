"""The Accept header field (RFC 9110, 12.5.1), which says which of the offered formats a caller prefers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_MOST: Final = 64
"""Maximum number of media types that are read from a field; honest clients list fewer."""
_WEIGHT: Final = re.compile(rb"[ \t]*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[ \t]*")


def media_weights(accept: bytes) -> dict[bytes, float]:
    """Return the weight of each media type or range in the field, in order. The weight is 0 if it is not a number.

    Parameters other than the weight are ignored; if a type is repeated, its first weight counts.
    """
    weights: dict[bytes, float] = {}
    for part in accept.split(b",", _MOST)[:_MOST]:
        kind, *parameters = part.lower().split(b";")
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition(b"=")
            if name.strip() == b"q":
                number = _WEIGHT.fullmatch(value)
                weight = float(number[1]) if number is not None else 0.0
        weights.setdefault(kind.strip(), weight)
    return weights


def preferred_type(accept: bytes, offered: Iterable[bytes], otherwise: bytes) -> bytes:
    """Return the media type in `offered` to which the field gives the greatest weight, by name or by a range (`*/*`).

    `otherwise`, one of `offered`, wins ties.
    """
    weights = media_weights(accept)
    by_range = weights.get(b"application/*", weights.get(b"*/*", 0.0))
    best, greatest = otherwise, weights.get(otherwise, by_range)
    for media_type in offered:
        weight = weights.get(media_type, by_range)
        if weight > greatest:
            best, greatest = media_type, weight
    return best


def accepted_types(accept: bytes, offered: Iterable[bytes], otherwise: bytes) -> list[bytes]:
    """Return the media types of `offered` that the field accepts, most preferred first.

    Named types come first, by weight. A range such as `*/*` expresses no preference: it adds `otherwise` (one of
    `offered`), and then the other offered types. Returns [`otherwise`] if the field accepts none of `offered`.
    """
    weights = media_weights(accept)
    known = list(offered)
    found = sorted((name for name in weights if name in known and weights[name] > 0), key=lambda name: -weights[name])
    if weights.get(b"application/*", weights.get(b"*/*", 0.0)) > 0:
        found += [name for name in dict.fromkeys((otherwise, *known)) if name not in weights and name not in found]
    return found or [otherwise]


def prefers_page(accept: bytes) -> bool:
    """Return True if the field lists HTML, as browsers do, and prefers no other type to it."""
    weights = media_weights(accept) if b"text/html" in accept else {}
    html = weights.get(b"text/html", 0.0)
    return html > 0 and html >= max(weights.values())

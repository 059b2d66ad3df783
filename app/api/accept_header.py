"""The header field Accept (RFC 9110, 12.5.1): which of the formats on offer a caller prefers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_MOST: Final = 64
"""So many media types of a field are read; no client that is honest lists more."""
_WEIGHT: Final = re.compile(rb"[ \t]*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[ \t]*")


def media_weights(accept: bytes) -> dict[bytes, float]:
    """The weight of each media type or range in the field, in its order; 0 where the weight is no number.

    Parameters other than the weight are left out; of a type that occurs twice the first weight holds.
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


def preferred(accept: bytes, offered: Iterable[bytes], otherwise: bytes) -> bytes:
    """The media type of `offered` with the greatest weight, by its name or a range such as `*/*`.

    `otherwise`, one of `offered`, where no other has a greater weight than it.
    """
    weights = media_weights(accept)
    by_range = weights.get(b"application/*", weights.get(b"*/*", 0.0))
    best, greatest = otherwise, weights.get(otherwise, by_range)
    for media_type in offered:
        weight = weights.get(media_type, by_range)
        if weight > greatest:
            best, greatest = media_type, weight
    return best


def preferred_by_name(accept: bytes, offered: Iterable[bytes], otherwise: bytes) -> bytes:
    """The media type of `offered` that is named with the greatest weight, the first of several; else `otherwise`.

    Ranges are passed over: `application/x-npy, */*` asks for npy, and `*/*` for nothing in particular.
    """
    known = frozenset(offered)
    best, greatest = otherwise, 0.0
    for media_type, weight in media_weights(accept).items():
        if media_type in known and weight > greatest:
            best, greatest = media_type, weight
    return best

"""The limits on tensors that hold for every format; settings fill them in once at start-up."""

from __future__ import annotations

from dataclasses import dataclass

NUMPY_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds, inclusive: ranks, one dimension, items of a tensor, bytes of the output and of one string, and
    features of a lookup. Each is the setting `max_` and its name, which is what errors call the limit, too.
    """

    rank: int = 32
    dimension: int = NUMPY_BYTES
    elements: int = 2**33
    output_bytes: int = 2**30
    string_bytes: int = 2**24
    features: int = 1024

"""Limits on tensors in all formats, set from the settings at startup."""

from __future__ import annotations

from dataclasses import dataclass

NUMPY_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Inclusive upper bounds.

    They apply to ranks, to each dimension, to the items of a tensor, to the bytes of the output and of a single string,
    and to the features of a lookup. The name of each setting is `max_` plus the name of its limit; errors use the name
    of the limit.
    """

    rank: int = 32
    dimension: int = NUMPY_BYTES
    elements: int = 2**33
    output_bytes: int = 2**30
    string_bytes: int = 2**24
    features: int = 1024

"""Limits on tensors in all formats; the settings set them at start-up."""

from __future__ import annotations

from dataclasses import dataclass

NUMPY_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Inclusive upper bounds: ranks, one dimension, items of a tensor, bytes of the output and of one string, and
    features of a lookup. The setting is `max_` plus the name, which is also the limit's name in errors.
    """

    rank: int = 32
    dimension: int = NUMPY_BYTES
    elements: int = 2**33
    output_bytes: int = 2**30
    string_bytes: int = 2**24
    features: int = 1024

"""Limits on tensors in all formats, set from the settings at start-up."""

from __future__ import annotations

from dataclasses import dataclass

NUMPY_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Inclusive upper bounds.

    They apply to ranks, each dimension, the items of a tensor, the bytes of the output and of one string, and the
    features of a lookup. Each setting is `max_` plus the name of its limit, which is also the name in errors.
    """

    rank: int = 32
    dimension: int = NUMPY_BYTES
    elements: int = 2**33
    output_bytes: int = 2**30
    string_bytes: int = 2**24
    features: int = 1024

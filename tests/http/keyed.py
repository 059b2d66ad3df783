"""Safetensors files whose tensors come in a given order, as tables with keys need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from tests.cluster.keyed_cases import key_arrays
from tests.parity.messages import saved


def body(**tensors: NDArray[Any]) -> bytes:
    """A safetensors file whose tensors come in this order; `__` stands for a point."""
    return saved({name.replace("__", "."): array for name, array in tensors.items()})


def of_texts(texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Keys that are strings, as the two tensors of an upload."""
    return {name.replace(".", "__"): array for name, array in key_arrays([*texts], "string").items()}

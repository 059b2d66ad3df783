"""Items and bodies for the golden corpus: the same bytes with every version of Python and on every CPU."""

from __future__ import annotations

import random
from typing import Any

from tests.http import forms
from tests.parity import messages

TEXTS = ("", "a", "ä", "日本", "two words", '"', "\\", "\n")


class Items:
    """Items made of `random()` alone, the one method of Python's generator that no version may change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def of(self, dtype: str, count: int) -> list[Any]:
        """Items in the form of JSON, each of which every float type holds exactly."""
        return [self._item(dtype) for _ in range(count)]

    def _below(self, end: int) -> int:
        return int(self._random() * end)

    def _item(self, dtype: str) -> Any:
        if dtype == "bool":
            return self._random() < 0.5
        if dtype == "string":
            return TEXTS[self._below(len(TEXTS))]
        if dtype.startswith("complex"):
            return [self._item("float32"), self._item("float32")]
        if "float" in dtype:
            odd = ("NaN", "Infinity", "-Infinity", -0.0)
            return odd[self._below(len(odd))] if self._random() < 0.05 else (self._below(257) - 128) / 8
        return self._below(100) - (0 if dtype.startswith("u") else 50)


def octets(given: dict[str, Any]) -> bytes:
    """Little-endian bytes of the items; strings behind their lengths."""
    return forms.octets(given["dtype"], given["values"])


def safetensors(arrays: dict[str, dict[str, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors body."""
    parts = {
        name: (messages.SHORT.get(given["dtype"], given["dtype"]), given["shape"], octets(given))
        for name, given in arrays.items()
    }
    return messages.safetensors(parts, metadata)

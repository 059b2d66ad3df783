"""Strings of Python as the service has them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor


def framed(texts: Sequence[str]) -> bytes:
    """The strings in BYTES framing."""
    return b"".join(len(octets).to_bytes(4, "little") + octets for octets in map(str.encode, texts))


def packed(texts: Sequence[str], shape: tuple[int, ...] | None = None) -> PackedStrings:
    """A tensor of strings, of one axis unless there is a shape."""
    starts = np.cumsum([0, *(4 + len(text.encode()) for text in texts)])[:-1].astype(np.int64)
    octets = np.frombuffer(framed(texts) or b"\0", np.uint8)
    return PackedStrings(DTYPES["string"], (len(texts),) if shape is None else shape, starts, octets=octets)


def items(tensor: Tensor) -> NDArray[Any]:
    """A copy of the flat items of any tensor; strings as str."""
    if not isinstance(tensor, PackedStrings):
        return tensor.array.copy()
    made: NDArray[Any] = np.empty(len(tensor.array), object)
    for item in range(len(made)):
        made[item] = str(tensor.frame(item)[4:], "utf-8")
    return made

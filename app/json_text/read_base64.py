"""Decodes the base64 of a tensor in a JSON body."""

from __future__ import annotations

import numpy as np
import pybase64
from numpy.typing import NDArray

from app.errors import GatherError, invalid_field
from app.json_text.read_values import values_of
from app.memory.budget import Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings


def base64_bytes(
    name: str, body: Buffer, view: NDArray[np.uint8], first: int, end: int, escaped: bool, memory: Memory
) -> bytes:
    """Decode the string in [first, end) of `body`; `view` is the body as an array.

    `memory` is charged before the bytes are allocated. Raises invalid_field if the string is not base64.
    """
    text = memoryview(body)[first + 1 : end - 1]
    if escaped:
        text = _unescape(name, view, first, end, memory)
    memory.charge(len(text) // 4 * 3)
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise _not_base64(name) from None


def _unescape(name: str, view: NDArray[np.uint8], first: int, end: int, memory: Memory) -> memoryview:
    """Decode the string in [first, end) of `view` to UTF-8. Raises invalid_field if it is not a valid string."""
    try:
        string = values_of(name, DTYPES["string"], ()).read(view, first, end, 0, memory)
    except GatherError as error:
        if error.code != "value_not_representable":
            raise
        raise _not_base64(name) from None
    assert isinstance(string, PackedStrings)
    return string.frame(0)[HEAD:]


def _not_base64(name: str) -> GatherError:
    hint = "Encode the bytes with + and /, and = at the end, and without spaces or line breaks."
    return invalid_field(f"/{name}/base64", "the text is not base64 (RFC 4648, with padding)", hint)

"""Strings in frames to a JSON list.

UTF-8 stays as it is. Only what RFC 8259 asks for is escaped: quotes, backslashes and the characters below the space, by
a letter where there is one and else by four hexadecimal digits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.memory.budget import UNCOUNTED, Memory
from app.tensors.frame_format import ROOM
from app.tensors.string_tensor import PackedStrings
from app.wire.json.codec_functions import write_strings

_BYTE: Final = np.dtype(np.uint8)
_NOWHERE: Final[NDArray[np.uint8]] = np.empty(0, _BYTE)


def strings_text(strings: PackedStrings, memory: Memory = UNCOUNTED) -> memoryview:
    """The list of the strings; `memory` is charged with it before it is made.

    Raises what charging raises, and tensor_damaged.
    """
    size = strings.checked(write_strings.run(strings.octets, strings.array, _NOWHERE))
    memory.charge(size + ROOM)
    text = np.empty(size + ROOM, _BYTE)
    strings.checked(write_strings.run(strings.octets, strings.array, text))
    return text.data[:size]

"""Strings in frames to a JSON list: the sibling of `app.wire.json.compiled.write_strings`."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.tensors.frame_format import HEAD, ROOM
from app.tensors.plain_string_frames import frames_at

_ESCAPED: Final = re.compile(rb'["\\\x00-\x1f]')
_LETTERS: Final = dict(zip(b'"\\\b\t\n\f\r', b'"\\btnfr', strict=True))


def _escape(found: re.Match[bytes]) -> bytes:
    letter = _LETTERS.get(found[0][0])
    return b"\\u%04x" % found[0][0] if letter is None else b"\\%c" % letter


def write_strings(octets: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """See `app.wire.json.compiled.write_strings.write_strings`."""
    memory, target = octets.data, 1
    limit = out.size - ROOM if out.size else None
    for frames in frames_at(octets, starts):
        if frames is None:
            return -1
        texts = [_ESCAPED.sub(_escape, memory[begin + HEAD : end]) for begin, end in frames]
        text = b"".join([b'"%b",' % one for one in texts])
        if limit is not None:
            if target + len(text) > limit:
                return -1
            out.data[target : target + len(text)] = text
        target += len(text)
    target -= starts.size > 0
    if limit is not None:
        if target >= limit:
            return -1
        out[0], out[target] = b"[]"
    return target + 1

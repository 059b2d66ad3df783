"""Safetensors bodies: several tensors in, one out. The service checks what it gets; this checks what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ._arrays import BY_SAFETENSORS, Buffer, Packed, unpacked
from .errors import UnexpectedAnswer


def join(tensors: Mapping[str, Packed]) -> list[Buffer]:
    """A safetensors body of `tensors` in pieces: the header, then each tensor's own memory.

    The tensors come by falling item size, so that each is aligned to its items. Every kind must be one that the
    format has.
    """
    order = sorted(tensors.items(), key=lambda pair: -_item_size(pair[1]))
    header: dict[str, Any] = {}
    place = 0
    for name, tensor in order:
        end = place + len(tensor.raw)
        header[name] = {
            "dtype": tensor.kind.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    size = len(text) + -len(text) % 8
    return [size.to_bytes(8, "little") + text.ljust(size), *(tensor.raw for _, tensor in order)]


def _item_size(tensor: Packed) -> int:
    return tensor.kind.numpy.itemsize if tensor.kind.numpy is not None else 2


def only_tensor(body: Buffer) -> NDArray[Any]:
    """The one tensor of a safetensors body, sharing its memory. Raises UnexpectedAnswer."""
    try:
        start = 8 + int.from_bytes(body[:8], "little")
        header = json.loads(bytes(body[8:start]))
        header.pop("__metadata__", None)
        (entry,) = header.values()
        kind = BY_SAFETENSORS[entry["dtype"]]
        shape = tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer is not a safetensors body of one tensor: {error!r}", 200) from error
    if (begin, end) != (0, len(body) - start):
        raise UnexpectedAnswer(f"the answer's tensor has {len(body) - start} bytes, not {end - begin}", 200)
    return unpacked(kind, shape, memoryview(body)[start:])

"""The safetensors format: request bodies of several tensors, answers of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ._array_bytes import ELEMENT_TYPE_OF_SAFETENSORS, Buffer, EncodedTensor, decode
from .errors import UnexpectedAnswer


def write_safetensors(tensors: Mapping[str, EncodedTensor]) -> list[Buffer]:
    """The buffers of a safetensors body with `tensors`: the header, then the bytes of each tensor, not copied.

    Tensors with larger items come first, so that each is aligned to its items. The format must have every element type.
    """
    order = sorted(tensors.items(), key=lambda pair: -_item_size(pair[1]))
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in order:
        end = offset + len(tensor.raw)
        header[name] = {
            "dtype": tensor.element_type.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    size = len(text) + -len(text) % 8
    return [size.to_bytes(8, "little") + text.ljust(size), *(tensor.raw for _, tensor in order)]


def _item_size(tensor: EncodedTensor) -> int:
    return tensor.element_type.numpy.itemsize if tensor.element_type.numpy is not None else 2


def read_safetensors(body: Buffer) -> NDArray[Any]:
    """The only tensor of a safetensors body, sharing its memory. Raises UnexpectedAnswer for any other body."""
    try:
        start = 8 + int.from_bytes(body[:8], "little")
        header = json.loads(bytes(body[8:start]))
        header.pop("__metadata__", None)
        (entry,) = header.values()
        element_type = ELEMENT_TYPE_OF_SAFETENSORS[entry["dtype"]]
        shape = tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer is not a safetensors body of one tensor: {error!r}", 200) from error
    if (begin, end) != (0, len(body) - start):
        raise UnexpectedAnswer(f"the answer's tensor has {len(body) - start} bytes, not {end - begin}", 200)
    return decode(element_type, shape, memoryview(body)[start:])

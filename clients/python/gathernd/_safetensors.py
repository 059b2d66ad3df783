"""The safetensors format: request bodies of several tensors, answers of one or two, and files of many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ._array_bytes import ELEMENT_TYPE_OF_SAFETENSORS, Buffer, ElementType, EncodedTensor
from .errors import UnexpectedAnswer

_KEPT_HEADER_BYTES: Final = 1024
"""Headers of at most so many bytes are remembered: lookups of one size have the same one each time."""
MAX_HEADER_BYTES: Final = 100 << 20
"""Most bytes of the header of a file, as the format's own library has it."""


def write_safetensors(tensors: Mapping[str, EncodedTensor], metadata: Mapping[str, str] | None = None) -> list[Buffer]:
    """The buffers of a safetensors body with `tensors`: the header, then the bytes of each tensor, not copied.

    Tensors with larger items come first, so that each is aligned to its items. The format must have every element type.
    `metadata` are the texts of `__metadata__`.
    """
    order = sorted(tensors.items(), key=lambda pair: -pair[1].element_type.itemsize)
    header = _header(
        tuple([(name, tensor.element_type.safetensors, tensor.shape, len(tensor.raw)) for name, tensor in order]),
        tuple((metadata or {}).items()),
    )
    return [header, *[tensor.raw for _, tensor in order]]


@lru_cache(256)
def _header(
    tensors: tuple[tuple[str, str | None, tuple[int, ...], int], ...], metadata: tuple[tuple[str, str], ...]
) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    length = len(text) + -len(text) % 8
    return length.to_bytes(8, "little") + text.ljust(length)


def read_safetensors(body: memoryview) -> tuple[ElementType, tuple[int, ...], memoryview]:
    """Type, shape and bytes of the only tensor of a safetensors body. Raises UnexpectedAnswer for any other body."""
    start = 8 + int.from_bytes(body[:8], "little")
    text = bytes(body[8:start])
    try:
        entries = _kept_entries(text) if len(text) <= _KEPT_HEADER_BYTES else read_entries(text)
        ((element_type, shape, begin, end),) = entries.values()
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not a safetensors body of one tensor: {error}", 200) from error
    if element_type is None or (begin, end) != (0, len(body) - start):
        raise UnexpectedAnswer(f"the answer's tensor has {len(body) - start} bytes, not {end - begin}", 200)
    return element_type, shape, body[start:]


def read_tensors(body: memoryview) -> dict[str, tuple[ElementType, tuple[int, ...], memoryview]]:
    """By name, type, shape and bytes of the tensors of a safetensors body. Raises UnexpectedAnswer for any other."""
    start = 8 + int.from_bytes(body[:8], "little")
    try:
        entries = read_entries(bytes(body[8:start]))
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not a safetensors body: {error}", 200) from error
    found = {}
    for name, (element_type, shape, begin, end) in entries.items():
        if element_type is None or not 0 <= begin <= end <= len(body) - start:
            raise UnexpectedAnswer(f"the answer's tensor {name!r} has no type that is known, or is not whole", 200)
        found[name] = element_type, shape, body[start + begin : start + end]
    return found


def read_metadata(body: memoryview) -> dict[str, str]:
    """The texts of `__metadata__` of a safetensors body. Raises ValueError for any other body."""
    start = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8:start]))
    found = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(found, dict):
        raise ValueError("no header of the safetensors format")
    return found


Entries = Mapping[str, tuple[ElementType | None, tuple[int, ...], int, int]]
"""By name, each tensor's type (None for one that the service lacks), shape, and where its bytes begin and end."""


def read_entries(text: bytes) -> Entries:
    """The tensors that a header names. Raises ValueError for what is no header of this format."""
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            begin, end = map(int, entry["data_offsets"])
            shape = tuple(map(int, entry["shape"]))
            found[name] = ELEMENT_TYPE_OF_SAFETENSORS.get(entry["dtype"]), shape, begin, end
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no header of the safetensors format: {error!r}") from error
    return found


_kept_entries = lru_cache(256)(read_entries)

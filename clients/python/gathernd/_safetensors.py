"""The safetensors format: request bodies of several tensors, answers of one or two, and files of many."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeGuard

from ._array_bytes import ELEMENT_TYPE_OF_SAFETENSORS, Buffer, ElementType, EncodedTensor, StreamedBytes, StreamedTensor
from .errors import UnexpectedAnswer

_KEPT_HEADER_BYTES: Final = 1024
"""Maximum size in bytes of a header to cache: requests of one size repeat the same header."""
MAX_HEADER_BYTES: Final = 100 << 20
"""Maximum size in bytes of a file's header, the same limit as in the format's own library."""


def write_safetensors(
    tensors: Mapping[str, EncodedTensor], metadata: Mapping[str, str] | None = None
) -> list[Buffer | StreamedBytes]:
    """Return the buffers of a safetensors body: the header, then the bytes of each tensor, without a copy.

    Tensors with larger items come first, so that each is aligned to its items. The format must support every element
    type. `metadata` becomes `__metadata__`.
    """
    order = sorted(tensors.items(), key=lambda pair: -pair[1].element_type.itemsize)
    return write_in_order(dict(order), metadata)


def write_in_order(
    tensors: Mapping[str, EncodedTensor | StreamedTensor], metadata: Mapping[str, str] | None = None
) -> list[Buffer | StreamedBytes]:
    """Return the buffers of a safetensors body with `tensors` in the given order, as an upload with keys requires."""
    described = tuple([(name, one.element_type.safetensors, one.shape, len(one.raw)) for name, one in tensors.items()])
    header = _header(described, tuple((metadata or {}).items()))
    return [header, *[tensor.raw for tensor in tensors.values()]]


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
    """Return type, shape and bytes of a body's only tensor. Raises UnexpectedAnswer for any other body."""
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
    """Return type, shape and bytes of a body's tensors by name. Raises UnexpectedAnswer if it is not safetensors."""
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
    """Return the `__metadata__` of a safetensors body. Raises ValueError for any other body."""
    start = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8:start]))
    found = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(found, dict):
        raise ValueError("no header of the safetensors format")
    return found


Entries = Mapping[str, tuple[ElementType | None, tuple[int, ...], int, int]]
"""By tensor name: type (None if the service does not have it), shape, and the start and end offset of its bytes."""


def read_entries(text: bytes) -> Entries:
    """Parse a header. Returns the tensors in the order of their bytes. Raises ValueError for an invalid header.

    The rules are those of the service and of the format's own library: `__metadata__` may be null, and members of a
    tensor other than dtype, shape and data_offsets are ignored. Duplicate keys, and overlaps or gaps between the bytes
    of tensors, are invalid.
    """
    if text[:1] != b"{":
        raise ValueError("its header does not begin with {")
    try:
        header = json.loads(text.decode(), object_pairs_hook=_members, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("its header nests too deep") from None
    metadata = header.pop("__metadata__", None)
    is_object = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not is_object:
        raise ValueError("its __metadata__ is not an object of strings")
    found = dict(sorted(((name, _entry(name, entry)) for name, entry in header.items()), key=lambda pair: pair[1][2:]))
    place = 0
    for name, (_, _, begin, end) in found.items():
        if begin != place:
            raise ValueError(f"the bytes of {name!r} do not follow those before them")
        place = end
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("its header gives a key twice")
    return members


def _refuse(constant: str) -> Any:
    raise ValueError(f"its header contains {constant}, which is not JSON")


def _entry(name: str, entry: Any) -> tuple[ElementType | None, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise ValueError(f"its header says nothing sound of {name!r}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if type(dtype) is not str or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"its header must give {name!r} dtype, shape and data_offsets")
    begin, end = offsets
    element_type = ELEMENT_TYPE_OF_SAFETENSORS.get(dtype)
    if begin > end or (element_type is not None and math.prod(shape) * element_type.itemsize != end - begin):
        raise ValueError(f"the bytes of {name!r} are not what {dtype} of shape {shape} has")
    return element_type, tuple(shape), begin, end


def _are_sizes(numbers: Any) -> TypeGuard[list[int]]:
    return type(numbers) is list and all(type(number) is int and number >= 0 for number in numbers)


_kept_entries = lru_cache(256)(read_entries)


def tensor_of_file(
    header: bytes, held: int, tensor: str | None, file: str
) -> tuple[ElementType, tuple[int, ...], int, int]:
    """Find a tensor in the header of a safetensors file: the tensor named `tensor`, or the only tensor.

    Returns its type, its shape, and the start and end offset of its bytes after the header. `held` is the number of
    bytes after the header; `file` is the file's name in errors. Raises ValueError if the file is invalid or the tensor
    is missing, and TypeError if the service does not have the type.
    """
    try:
        entries = read_entries(header)
    except ValueError as error:
        raise ValueError(f"{file} is not a sound safetensors file: {error}") from None
    if held != max((end for *_, end in entries.values()), default=0):
        raise ValueError(f"{file} is not a sound safetensors file: its header does not describe the {held} bytes of it")
    if tensor is None and len(entries) == 1:
        (tensor,) = entries
    if tensor is None or tensor not in entries:
        names = ", ".join(list(entries)[:20]) + (", …" if len(entries) > 20 else "")
        raise ValueError(f"{file} has the tensors {names}; tensor= says which of them to upload")
    element_type, shape, begin, end = entries[tensor]
    if element_type is None:
        raise TypeError(f"the service has no element type for {tensor} of {file}; as uint8, its bytes can be kept")
    return element_type, shape, begin, end

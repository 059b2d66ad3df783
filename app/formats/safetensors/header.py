"""Reads and writes the JSON header of a safetensors body: an object with one member per tensor, and `__metadata__`.

The rules are those of the format's own library: `__metadata__` may be null, and members of a tensor other than dtype,
shape and data_offsets are ignored. Two more rules come from the specification: the header must begin with a brace, and
keys must not be repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NoReturn

from app.errors import GatherError
from app.json_text.grammar import FramingFault, check_framing
from app.json_text.lossless_json import shown
from app.tensors.dtypes import BY_SAFETENSORS, DType
from app.tensors.little_endian_items import bounded_product, items_text
from app.tensors.near_dtype import hint_for_dtype, holds_positions

MAX_HEADER: Final = 1 << 20
"""Maximum size in bytes of the JSON header; a typical header of two tensors has a few hundred."""
HEADER_BYTES: Final = 48
"""Maximum bytes of memory per byte of the header; a member of `__metadata__` may have only 8 bytes."""
ALIGNMENT: Final = 64
"""Alignment in bytes of the items of a response, so that readers can map them."""
_MOST_ENTRY: Final = 1 << 16
"""Maximum size in bytes of the description of a tensor; a typical one has a few dozen."""
_MOST_NESTED: Final = 127
"""Maximum nesting depth of objects and lists, as in the format's own library."""
_TEXT: Final = rb'"(?:[^"\\]++|\\.)*+"'
_MARK: Final = re.compile(rb"(%b)[ \t\n\r]*+:|%b|[{}\[\]]" % (_TEXT, _TEXT), re.DOTALL)
"""A key, another string, or a bracket."""
_STEPS: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_NARROW: Final = re.compile(r"(?:F[468]|[IU]4)(?:_\w{1,16})?")
"""Types of at most 8 bits that the format has but this service does not support."""
UNSOUND_HINT: Final = (
    "Write the file with save_file of safetensors, and send all of its bytes, as 'curl -T FILE' and '--data-binary "
    "@FILE' do: '-d' leaves out line ends."
)


@dataclass(slots=True, eq=False)
class Entry:
    """A tensor in the header; `begin` and `end` are byte offsets from the end of the header.

    `known` is the element type, or None if `dtype` is not supported. `pointer` locates the tensor in errors. `fault`
    describes a wrong number of bytes; it is "" if the number matches the shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    known: DType | None
    pointer: str = field(init=False)
    fault: str = field(init=False)

    def __post_init__(self) -> None:
        self.pointer = f"/{self.name}"
        self.fault = ""
        known, size = self.known, self.end - self.begin
        if known is not None and bounded_product(self.shape, size + 1) * known.item_size != size:
            self.fault = f"{size} bytes were sent, but the shape requires {items_text(self.shape)} of {known.name}"


_DESCRIBED: Final = ("dtype", "shape", "data_offsets")
_PLACE: Final = attrgetter("begin", "end")


def read_header(header: bytes, metadata: dict[str, str] | None = None) -> tuple[Entry, ...]:
    """Parse a safetensors header. Returns the tensors in the order of their bytes, which must not have gaps.

    `__metadata__` must be null or an object of strings, which are added to `metadata` if that is given. Raises
    malformed_request.
    """
    if header[:1] != b"{":
        _malformed("the safetensors header does not start with {")
    try:
        check_framing(header)
    except FramingFault as fault:
        _malformed(fault.detail.replace("the body", "the safetensors header"))
    entries = []
    for name, text in _members(header):
        if name != "__metadata__":
            entries.append(_entry(name, text))
        elif text != b"null":
            found = _metadata(text)
            if metadata is not None:
                metadata |= found
    entries.sort(key=_PLACE)
    place = 0
    for entry in entries:
        if entry.begin != place:
            what = "overlap" if entry.begin < place else "leave a hole"
            _malformed(f"the bytes of the tensors {what} at data_offsets {entry.begin} of {shown(entry.name)!a}")
        place = entry.end
    return tuple(entries)


def _members(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and JSON text of each member of a JSON object.

    The members are parsed one at a time, so that other threads can run in between.
    """
    depth, keys = 0, []
    for mark in _MARK.finditer(text):
        depth += _STEPS.get(mark[0], 0)
        if depth > _MOST_NESTED:
            _malformed(f"the safetensors header nests lists and objects more than {_MOST_NESTED} deep")
        if depth == 1 and mark[1]:
            keys.append(mark)
    ends = [key.start() for key in keys[1:]]
    for key, end in zip(keys, [*ends, text.rindex(b"}")], strict=False):
        yield _value("a name", key[1]), text[key.end() : end].strip(b" \t\n\r,")


def _value(of: str, text: bytes) -> Any:
    """Parse a JSON text in the header."""
    try:
        return json.loads(text.decode())
    except ValueError as error:  # an integer with more than 4,300 digits
        _malformed(f"the safetensors header is not JSON at {of}: {error}")


def _metadata(text: bytes) -> dict[str, str]:
    """Return the strings of `__metadata__`, by name."""
    texts = dict(_members(text)) if text[:1] == b"{" else {"": b""}
    if any(text[:1] != b'"' for text in texts.values()):
        _malformed("__metadata__ of the safetensors header is not an object of strings")
    return {name: _value("__metadata__", text) for name, text in texts.items()}


def _entry(name: str, text: bytes) -> Entry:
    """Parse the JSON object that describes a tensor."""
    if len(text) > _MOST_ENTRY:
        _malformed(f"what the safetensors header says of {shown(name)!a} goes on for more than {_MOST_ENTRY} bytes")
    member = _value(f"{shown(name)!a}", text)
    dtype, shape, offsets = map(member.get, _DESCRIBED) if type(member) is dict else (None, None, None)
    if type(dtype) is not str or type(shape) is not list or type(offsets) is not list:
        _malformed(f"the safetensors header must give {shown(name)!a} dtype, shape and data_offsets")
    if any(type(size) is not int or size < 0 for size in shape):
        _malformed(f"the shape of {shown(name)!a} in the safetensors header is not a list of integers of 0 or more")
    if len(offsets) != 2 or type(offsets[0]) is not int or type(offsets[1]) is not int:
        _malformed(f"the data_offsets of {shown(name)!a} in the safetensors header are not two integers")
    begin, end = offsets
    if not 0 <= begin <= end < 2**63:
        _malformed(f"the data_offsets of {shown(name)!a} in the safetensors header are not 0 <= begin <= end < 2^63")
    return Entry(name, dtype, tuple(shape), begin, end, BY_SAFETENSORS.get(dtype))


def check_header_size(size: int, pointer: str | None = None) -> None:
    """Raise limit_exceeded for a header of more than `MAX_HEADER` bytes."""
    if size > MAX_HEADER:
        raise GatherError(
            "limit_exceeded",
            f"the safetensors header has {size} bytes; the limit is {MAX_HEADER}",
            pointer=pointer,
            facts={"limit": "safetensors_header_bytes", "maximum": MAX_HEADER},
        )


def _malformed(detail: str) -> NoReturn:
    raise GatherError("malformed_request", detail, hint=UNSOUND_HINT)


def hint_for_type(given: str, of: str = "data") -> str:
    """Return the hint for a body whose tensor `of` has the unsupported type `given`."""
    if _NARROW.fullmatch(given) and not holds_positions(of):
        return (
            f"Save {given} as U8 to keep its bytes as uint8, as tensor.view(torch.uint8) and array.view('uint8') "
            "do it, or convert the tensor to F32."
        )
    return hint_for_dtype(given, {row.name: name for name, row in BY_SAFETENSORS.items()}, of)


def write_header(name: str, dtype: DType, shape: tuple[int, ...], size: int) -> bytes:
    """Return the bytes that precede the `size` bytes of a body's only tensor, padded to `ALIGNMENT`."""
    return write_headers({name: (dtype, shape, size)})


def write_headers(tensors: Mapping[str, tuple[DType, tuple[int, ...], int]], metadata: str = "") -> bytes:
    """Return the bytes that precede several tensors. `tensors` maps each name to its type, shape and size in bytes.

    `metadata` is the JSON text of `__metadata__`, or "".
    """
    entries = [f'"__metadata__":{metadata}'] if metadata else []
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        sizes = ",".join(map(str, shape))
        offsets = f"{end},{end + size}"
        entries.append(f'"{name}":{{"dtype":"{dtype.safetensors}","shape":[{sizes}],"data_offsets":[{offsets}]}}')
        end += size
    text = f"{{{','.join(entries)}}}".encode()
    length = len(text) + -(8 + len(text)) % ALIGNMENT
    return length.to_bytes(8, "little") + text.ljust(length)

"""The JSON header of a safetensors body, read and written: an object whose members describe a tensor each, but for
`__metadata__`.

It means what it means to the format's own library: `__metadata__` may be null, members of a tensor other than dtype,
shape and data_offsets are ignored. Two rules are of the format's text, and not of its library: the header begins with a
brace, and no key is given twice.
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
"""Most bytes of the JSON header: an honest one of two tensors has some hundreds."""
HEADER_BYTES: Final = 48
"""What a byte of the header takes at most while it is read: a name and a text of `__metadata__` may have 8 bytes."""
ALIGNMENT: Final = 64
"""The items of an answer start at a multiple of this many bytes, so that readers can map them as they are."""
_MOST_ENTRY: Final = 1 << 16
"""Most bytes of what the header says of one tensor: an honest one has some dozens."""
_MOST_NESTED: Final = 127
"""Most objects and lists within one another, as the format's own library has it."""
_TEXT: Final = rb'"(?:[^"\\]++|\\.)*+"'
_MARK: Final = re.compile(rb"(%b)[ \t\n\r]*+:|%b|[{}\[\]]" % (_TEXT, _TEXT), re.DOTALL)
"""A key, another text, or a bracket."""
_STEPS: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_NARROW: Final = re.compile(r"(?:F[468]|[IU]4)(?:_\w{1,16})?")
"""Types of 8 bits and less that the format has and this service has not."""
UNSOUND_HINT: Final = (
    "Write the file with save_file of safetensors, and send all of its bytes, as 'curl -T FILE' and '--data-binary "
    "@FILE' do: '-d' leaves out line ends."
)


@dataclass(slots=True, eq=False)
class Entry:
    """A tensor as the header describes it; `begin` and `end` count from the end of the header.

    `known` is the element type, None if `dtype` names none that is read here; `pointer` is where errors say that the
    tensor is, and `fault` how the number of bytes is not what the shape asks for, "" if it is.
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
            self.fault = f"{size} bytes are given and {items_text(self.shape)} of {known.name} are asked for"


_DESCRIBED: Final = ("dtype", "shape", "data_offsets")
_PLACE: Final = attrgetter("begin", "end")


def read_header(header: bytes, metadata: dict[str, str] | None = None) -> tuple[Entry, ...]:
    """The tensors that a safetensors header describes, in the order of their bytes, which leave no hole.

    Raises malformed_request. `__metadata__` has to be null or an object of texts, which are added to `metadata`, if
    given.
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
    """Name and JSON of each member of the object that a JSON text is.

    Each is read by itself, so that other threads go on in between.
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
    """The value of a JSON text in the header."""
    try:
        return json.loads(text.decode())
    except ValueError as error:  # an integer of more than 4,300 digits
        _malformed(f"the safetensors header is not JSON at {of}: {error}")


def _metadata(text: bytes) -> dict[str, str]:
    """The texts of `__metadata__`, by name."""
    texts = dict(_members(text)) if text[:1] == b"{" else {"": b""}
    if any(text[:1] != b'"' for text in texts.values()):
        _malformed("__metadata__ of the safetensors header is not an object of texts")
    return {name: _value("__metadata__", text) for name, text in texts.items()}


def _entry(name: str, text: bytes) -> Entry:
    """The tensor that a JSON object describes."""
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
    """Say how to mend a body whose tensor `of` has the type `given`, which is not read here."""
    if _NARROW.fullmatch(given) and not holds_positions(of):
        return (
            f"Save {given} as U8 to keep its bytes as uint8, as tensor.view(torch.uint8) and array.view('uint8') "
            "do it, or convert the tensor to F32."
        )
    return hint_for_dtype(given, {row.name: name for name, row in BY_SAFETENSORS.items()}, of)


def write_header(name: str, dtype: DType, shape: tuple[int, ...], size: int) -> bytes:
    """What stands before the `size` bytes of the items of the one tensor of a body, padded to `ALIGNMENT`."""
    return write_headers({name: (dtype, shape, size)})


def write_headers(tensors: Mapping[str, tuple[DType, tuple[int, ...], int]], metadata: str = "") -> bytes:
    """The same for tensors whose items follow one another: of each its name, type, shape and bytes.

    `metadata` is the JSON of `__metadata__`, "" for none.
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

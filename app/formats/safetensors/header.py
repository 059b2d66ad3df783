"""The JSON header of a safetensors body, read and written: an object whose members describe a tensor each, but for
`__metadata__`.

It means what it means to the format's own library: `__metadata__` may be null, members of a tensor other than dtype,
shape and data_offsets are ignored. Two rules are of the format's text, and not of its library: the header begins with a
brace, and no key is given twice.

It is read member by member, and `__metadata__`, which is ignored, text by text: the cost of each is small, whatever the
whole is, and other threads go on in between. The first that is wrong ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NoReturn

import orjson

from app.errors import GatherError
from app.json_text.lossless_json import shown
from app.tensors.dtypes import BY_SAFETENSORS, DType
from app.tensors.little_endian_items import bounded_product, items_text
from app.tensors.near_dtype import hint_for_dtype, holds_positions

MAX_HEADER: Final = 1 << 20
"""Most bytes of the JSON header: an honest one of two tensors has some hundreds."""
HEADER_BYTES: Final = 24
"""What a byte of the header takes at most while it is read: of a tensor's 50 bytes an object, its name and shape."""
ALIGNMENT: Final = 64
"""The items of an answer start at a multiple of this many bytes, so that readers can map them as they are."""
_MOST_ENTRY: Final = 1 << 16
"""Most bytes of what the header says of one tensor: an honest one has some dozens."""
_TEXT: Final = rb'"[^"\\\x00-\x1f]*+(?:\\["\\/bfnrtu][^"\\\x00-\x1f]*+)*+"'
_KEY: Final = re.compile(rb"[ \t\n\r]*+(%b)[ \t\n\r]*+:[ \t\n\r]*+" % _TEXT)
_NEXT_KEY: Final = re.compile(rb"[ \t\n\r]*+," + _KEY.pattern)
_VALUE: Final = re.compile(_TEXT)
_NEXT: Final = re.compile(rb"[ \t\n\r]*+([,}])")
_NONE: Final = re.compile(rb"[ \t\n\r]*+}")
_SPACE: Final = b" \t\n\r"
_TEXT_OR_BRACKET: Final = re.compile(rb"%b|[{}\[\]]" % _TEXT)
_NARROW: Final = re.compile(r"(?:F[468]|[IU]4)(?:_\w{1,16})?")
"""Types of 8 bits and less that the format has and this service has not."""
UNSOUND_HINT: Final = (
    "Write the file with save_file of safetensors, and send all of its bytes, as 'curl -T FILE' and '--data-binary "
    "@FILE' do: '-d' leaves out line ends."
)
_MEMBERS: Final = frozenset(("dtype", "shape", "data_offsets"))
_MOST_NESTED: Final = 126
"""Most objects and lists within one another in what the header says of a tensor, as the format's own library has it."""


@dataclass(slots=True, eq=False)
class Entry:
    """A tensor as the header describes it; `begin` and `end` count from the end of the header.

    `known` is the element type, None where `dtype` names none that is read here; `pointer` is where errors say that the
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


_PLACE: Final = attrgetter("begin", "end")


def read_header(header: bytes, metadata: dict[str, str] | None = None) -> tuple[Entry, ...]:
    """The tensors that a safetensors header describes, in the order of their bytes, which leave no hole.

    Raises malformed_request. `__metadata__` has to be null or an object of texts, which are added to `metadata`, if
    given.
    """
    if header[:1] != b"{":
        _malformed("the safetensors header does not start with {")
    names: set[str] = set()
    entries = []
    place = 1
    match = _KEY.match(header, place)
    if match is None and _NONE.match(header, place) is None:
        _no_name(place)
    while match is not None:
        name, place = _name(match, names), match.end()
        if name == "__metadata__":
            place = _after_metadata(header, place, metadata)
        else:
            value, end = _object(name, header, place)
            entries.append(_entry(name, value, header, place, end))
            place = end
        match = _NEXT_KEY.match(header, place)
    place, more = _after_next(header, place)
    if more:
        _no_name(place)
    if header[place:].strip(_SPACE):
        _malformed("the safetensors header is not JSON: more follows the object")
    entries.sort(key=_PLACE)
    place = 0
    for entry in entries:
        if entry.begin != place:
            what = "overlap" if entry.begin < place else "leave a hole"
            _malformed(f"the bytes of the tensors {what} at data_offsets {entry.begin} of {shown(entry.name)!a}")
        place = entry.end
    return tuple(entries)


def check_header_size(size: int, pointer: str | None = None) -> None:
    """Raise limit_exceeded for a header of more than `MAX_HEADER` bytes."""
    if size > MAX_HEADER:
        raise GatherError(
            "limit_exceeded",
            f"the safetensors header has {size} bytes; the limit is {MAX_HEADER}",
            pointer=pointer,
            facts={"limit": "safetensors_header_bytes", "maximum": MAX_HEADER},
        )


def _no_name(place: int) -> NoReturn:
    _malformed(f"the safetensors header is not JSON: a name is wanted at byte {place}")


def _name(match: re.Match[bytes], names: set[str]) -> str:
    """The name of a member, which `names` does not have yet."""
    text = match[1]
    name = text[1:-1].decode() if text.isascii() and b"\\" not in text else _text(text)
    if name in names:
        _malformed("the safetensors header gives a key twice")
    names.add(name)
    return name


def _text(text: bytes) -> str:
    """What a JSON text says; a lone surrogate is one."""
    try:
        return text[1:-1].decode() if b"\\" not in text else str(json.loads(text.decode()))
    except ValueError as error:
        _malformed(f"the safetensors header is not JSON: {error}")


def _after_next(header: bytes, place: int) -> tuple[int, bool]:
    """The place after the comma or the brace behind a member, and whether it is a comma."""
    match = _NEXT.match(header, place)
    if match is None:
        _malformed(f"the safetensors header is not JSON: a comma or a brace is wanted at byte {place}")
    return match.end(), match[1] == b","


def _after_metadata(header: bytes, place: int, metadata: dict[str, str] | None) -> int:
    if header[place : place + 4] == b"null":
        return place + 4
    if header[place : place + 1] != b"{":
        _malformed("__metadata__ of the safetensors header is not an object of texts")
    place += 1
    names: set[str] = set()
    more = _NONE.match(header, place) is None
    if not more:
        place = _after_next(header, place)[0]
    while more:
        match = _KEY.match(header, place)
        if match is None:
            _no_name(place)
        name = _name(match, names)
        match = _VALUE.match(header, match.end())
        if match is None:
            _malformed("__metadata__ of the safetensors header has a member that is not a text")
        text = _text(match[0])
        if metadata is not None:
            metadata[name] = text
        place, more = _after_next(header, match.end())
    return place


def _object(name: str, header: bytes, place: int) -> tuple[dict[str, Any], int]:
    """The JSON object at `place`, which describes the tensor `name`, and the place behind it."""
    end = header.find(b"}", place) + 1
    text = header[place:end]
    if len(text) <= _MOST_ENTRY and text.count(b":") == len(_MEMBERS):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = None  # the brace is perhaps one of a text
        if type(value) is dict and value.keys() == _MEMBERS:
            return value, end
    end = _end_of_object(name, header, place)
    return _exactly(name, header[place:end]), end


def _end_of_object(name: str, header: bytes, place: int) -> int:
    """The place behind the JSON object at `place`."""
    if header[place : place + 1] != b"{":
        _no_members(name)
    depth = end = 0
    for match in _TEXT_OR_BRACKET.finditer(header, place, place + _MOST_ENTRY):
        mark = match[0]
        if mark in (b"{", b"["):
            depth += 1
            if depth > _MOST_NESTED:
                _malformed(f"the safetensors header nests lists and objects of {shown(name)!a} too deep")
        elif mark in (b"}", b"]"):
            depth -= 1
            if not depth:
                end = match.end()
                break
    if not end:
        is_long = place + _MOST_ENTRY < len(header)
        what = f"goes on for more than {_MOST_ENTRY} bytes" if is_long else "does not end"
        _malformed(f"the safetensors header is not sound: what it says of {shown(name)!a} {what}")
    return end


def _entry(name: str, value: dict[str, Any], header: bytes, place: int, end: int) -> Entry:
    """The tensor that the object `value` describes, which stands in the header from `place` to `end`."""
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if type(dtype) is not str or type(shape) is not list or type(offsets) is not list:
        _no_members(name)
    for size in shape:
        if type(size) is not int or size < 0:
            shape = _exact_shape(name, header[place:end])
            break
    if len(offsets) != 2 or type(offsets[0]) is not int or type(offsets[1]) is not int:
        _malformed(f"the data_offsets of {shown(name)!a} in the safetensors header are not two integers")
    begin, end = offsets
    if not 0 <= begin <= end < 2**63:
        _malformed(f"the data_offsets of {shown(name)!a} in the safetensors header are not 0 <= begin <= end < 2^63")
    return Entry(name, dtype, tuple(shape), begin, end, BY_SAFETENSORS.get(dtype))


def _exact_shape(name: str, text: bytes) -> list[int]:
    """The shape of a tensor with a dimension that is no plain integer, or of more than 64 bits."""
    shape: list[Any] = _exactly(name, text)["shape"]
    for size in shape:
        if type(size) is not int or size < 0:
            _malformed(f"the shape of {shown(name)!a} in the safetensors header is not a list of integers of 0 or more")
    return shape


def _no_members(name: str) -> NoReturn:
    _malformed(f"the safetensors header must give {shown(name)!a} dtype, shape and data_offsets")


def _exactly(name: str, text: bytes) -> dict[str, Any]:
    """The object that a JSON text is, with members that are not known and integers of more than 64 bits."""
    try:
        value: dict[str, Any] = json.loads(text.decode(), object_pairs_hook=_members)
        if value.keys() - _MEMBERS:
            orjson.loads(text)  # which takes no NaN, no infinite number and no lone surrogate
    except (ValueError, RecursionError) as error:
        _malformed(f"the safetensors header is not JSON at {shown(name)!a}: {str(error)[:200]}")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is given twice")
    return members


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

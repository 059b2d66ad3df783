"""Parses the fields of a protobuf message (protobuf.dev, "Encoding") that protobuf's classes should not parse.

protobuf's classes copy a message's bytes twice and hold the interpreter's lock while they do so. So the items in
`raw_input_contents` are first cut out as views. The id is also cut out, so that the rest is identical from call to
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.lookup_call import ARRAYS

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_ID, _INPUT, _RAW = (number << 3 | _BYTES for number in (3, 5, 7))
"""Tags of the `id`, `inputs` and `raw_input_contents` fields of a ModelInferRequest."""
_LONGEST_VARINT: Final = 10
MAX_REST_BYTES: Final = 1 << 20
"""Maximum size of a message without `raw_input_contents`: protobuf takes 10 to 20 ms for a megabyte of tiny fields,
during which nothing else runs (measured 2026-11, 2 cores of an AMD EPYC).
"""


_MOST_OTHERS: Final = 1 << 10
"""Maximum number of fields other than inputs, raw items and one output per feature.

Each name or parameter is a field.
"""


class InferMessage(NamedTuple):
    """A `ModelInferRequest` in three parts: the id, the items of raw inputs, and `rest`, the message without them."""

    identifier: str
    raws: Sequence[memoryview]
    rest: bytes


def split(message: bytes, features: int, most_fields: int | None = None) -> InferMessage | None:
    """Cut the raw items and the id out of a message. Returns None if the message has more than `most_fields` fields.

    `features` is the maximum number of features of a lookup. Raises malformed_request and limit_exceeded.
    """
    most = len(ARRAYS) * features
    whole, size = memoryview(message), len(message)
    identifier = b""
    kept: list[Buffer] = []
    raws: list[memoryview] = []
    at = end = inputs = fields = 0
    try:
        while at < size:
            start = at
            if fields == most_fields:
                return None
            fields += 1
            tag, at = read_varint(message, at)
            kind = tag & 7
            if kind == _BYTES:
                length, value = read_varint(message, at)
                at = value + length
                if tag in (_RAW, _ID):
                    kept.append(whole[end:start])
                    end = at
                if tag == _ID:
                    identifier = message[value:at]
                elif tag == _RAW:
                    raws.append(whole[value:at])
                inputs += tag == _INPUT
                if max(inputs, len(raws)) > most:
                    raise _too_many_inputs(features)
            elif kind == _VARINT:
                _, at = read_varint(message, at)
            elif kind in _FIXED:
                at += _FIXED[kind]
            else:
                raise malformed(f"the field at byte {start} of the message has the wire type {kind}")
            if at > size:
                raise malformed(f"the field at byte {start} of the message extends beyond it")
            if fields - inputs - len(raws) > _MOST_OTHERS + features:
                raise malformed(f"the message has more than {_MOST_OTHERS + features} fields other than its inputs")
    except IndexError:
        raise malformed("the message ends within a field") from None
    kept.append(whole[end:])
    left = sum(map(len, kept))
    if left > MAX_REST_BYTES:
        raise GatherError(
            "limit_exceeded",
            f"everything except raw_input_contents has {left} bytes; the limit is {MAX_REST_BYTES}",
            facts={"limit": "fields_bytes", "maximum": MAX_REST_BYTES},
            hint="Send the items of all inputs in raw_input_contents.",
        )
    try:
        return InferMessage(identifier.decode(), raws, b"".join(kept))
    except UnicodeDecodeError:
        raise malformed("the id is not UTF-8") from None


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Read the varint at byte `at` of a message. Returns its value and the offset of its end.

    Raises malformed_request, and IndexError if the message ends within the varint.
    """
    number = 0
    for place in range(_LONGEST_VARINT):
        octet = message[at + place]
        number |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise malformed(f"the number at byte {at} of the message has more than {_LONGEST_VARINT} bytes")


def varint(number: int) -> bytes:
    """Encode `number` as a varint, with 7 bits per byte."""
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def malformed(detail: str) -> GatherError:
    """Return the error for bytes that are not a valid message."""
    return GatherError(
        "malformed_request", detail, hint="Send a ModelInferRequest of the inference protocol, as its clients write it."
    )


def _too_many_inputs(features: int) -> GatherError:
    return GatherError(
        "limit_exceeded",
        f"the request has more than {len(ARRAYS) * features} inputs, of which a lookup has {len(ARRAYS)} for each "
        "feature at most",
        pointer="/inputs",
        facts={"limit": "features", "maximum": features},
        hint=f"Send at most {features} features in a request, or have the operator raise GATHERND_MAX_FEATURES.",
    )

"""The table of body formats: media type, reader, writer, and the supported element types of each.

The same rows read requests and write responses for every request family. Whole tensors have their own table. The
inference protocol is not included, because its routes use a single format that does not depend on Content-Type and
Accept (`app.formats.oip.read_body`).

An upload as application/octet-stream consists of raw items; dtype and shape are in the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from app.errors import GatherError, invalid_field
from app.formats import npy
from app.formats.json import read_request as json_request
from app.formats.json import write_answer as json_answer
from app.formats.npy import Start
from app.formats.safetensors import read_request as safetensors_request
from app.formats.safetensors import upload
from app.formats.safetensors import write_answer as safetensors_answer
from app.formats.safetensors.header import UNSOUND_HINT, write_header
from app.memory.budget import UNCOUNTED, Memory
from app.requests.schemas.member_types import SIZES
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Answer, Encoding
from app.tensors.near_dtype import hint_for_dtype
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits


def _read_raw_start(fields: dict[str, str]) -> Start:
    """Read the dtype and shape of raw items from the query. Raises invalid_field and unsupported_dtype."""
    for name in ("dtype", "shape"):
        if name not in fields:
            raise invalid_field(
                f"/query/{name}",
                f"application/octet-stream needs {name}= in the query, as in ?dtype=float32&shape=200000,64",
                f"Add '{name}' to the query, as in ?dtype=float32&shape=2,3, or upload npy, or safetensors as "
                "'Content-Type: application/x-safetensors', which contain it.",
            )
    if fields["dtype"] not in DTYPES:
        raise GatherError(
            "unsupported_dtype",
            f"{fields['dtype'][:80]!a} is not an element type",
            pointer="/query/dtype",
            hint=hint_for_dtype(fields["dtype"]),
        )
    try:
        shape = SIZES.parse(fields["shape"])
    except ValueError:
        detail = "shape must be integers of 0 or more with commas between them"
        raise invalid_field("/query/shape", detail, "Write the sizes with commas, as in shape=2,3.") from None
    return Start(DTYPES[fields["dtype"]], shape, 0, shape_pointer="/query/shape")


_ALL: Final = frozenset(DTYPES)
_OF_SAFETENSORS: Final = frozenset(name for name, row in DTYPES.items() if row.safetensors is not None)
LONG_JSON: Final = 1 << 16
"""JSON bodies with more bytes are read in a thread of the pool, so that the event loop is not blocked."""
LONG_BINARY: Final = 1 << 23
"""The same limit for binary bodies, whose items are at most checked (bool) or copied."""
LONG_HEADER: Final = 1 << 13
"""The same limit for the headers of binary bodies."""
LONG_LOOKUP: Final = 1 << 14
"""The same limit for JSON bodies of lookups, most of whose bytes become Python objects."""


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """A format of requests and responses, for every family of requests.

    `read` builds a call from a body, its query, the request's signature and the limits; it charges memory before it
    allocates. `write` writes the response body for an `Answer`; its dtypes must be in `dtypes`. A body is read in a
    thread if it has more than `short_body` bytes and `is_long_body` is true; a response is written in a thread if
    `is_long_answer` is true. The body of a `binary` response contains only tensors; the header fields carry the other
    members of a JSON response. `check_writable` raises unsupported_dtype, at a pointer, for a type that is not in
    `dtypes`. `compiled` is True if the reader needs the compiled code to be ready.
    """

    media_type: bytes
    dtypes: frozenset[str]
    binary: bool
    compiled: bool
    read: Callable[[Buffer, bytes, Any, Limits, Memory], tuple[Any, Encoding]]
    write: Callable[[Answer, Encoding, Memory], list[Buffer]]
    short_body: int
    is_long_body: Callable[[Buffer], bool]
    is_long_answer: Callable[[Answer], bool]
    check_writable: Callable[[DType, str], None]


Formats = Mapping[bytes, Codec]
"""Formats by media type."""
JSON: Final = b"application/json"
SAFETENSORS: Final = b"application/x-safetensors"
_JSON: Final = Codec(
    JSON,
    _ALL,
    binary=False,
    compiled=True,
    read=json_request.read_request,
    write=json_answer.write_answer,
    short_body=LONG_JSON,
    is_long_body=lambda body: True,
    is_long_answer=json_answer.is_long_answer,
    check_writable=lambda dtype, pointer: None,
)
_SAFETENSORS: Final = Codec(
    SAFETENSORS,
    _OF_SAFETENSORS,
    binary=True,
    compiled=False,
    read=safetensors_request.read_request,
    write=safetensors_answer.write_answer,
    short_body=LONG_HEADER,  # a header is never longer than its body
    is_long_body=lambda body: len(body) > LONG_BINARY or safetensors_request.header_size(body) > LONG_HEADER,
    is_long_answer=lambda answer: False,
    check_writable=safetensors_answer.check_writable,
)
FORMATS: Final[Formats] = {JSON: _JSON, SAFETENSORS: _SAFETENSORS}
_OF_LOOKUPS: Final[Formats] = {JSON: replace(_JSON, short_body=LONG_LOOKUP), SAFETENSORS: _SAFETENSORS}


def formats_of(signature: Signature) -> Formats:
    """Return the formats of a family of requests."""
    return _OF_LOOKUPS if signature.kind == "lookup" else FORMATS


@dataclass(frozen=True, slots=True, eq=False)
class TensorCodec:
    """A format of whole tensors.

    `read_start` parses the start of an upload and its query; it returns None if it needs more bytes. `write_head`
    writes the bytes that precede the items of a download, given the dtype, the shape and the size of the items.
    `is_meant` recognizes an upload without a media type by its first bytes. `in_query` is True if dtype and shape are
    in the query.
    """

    media_type: str
    dtypes: frozenset[str]
    in_query: bool
    is_meant: Callable[[bytes | bytearray], bool]
    read_start: Callable[[bytes | bytearray, dict[str, str], Memory], Start | None]
    write_head: Callable[[DType, tuple[int, ...], int], bytes]


def _npy_head(dtype: DType, shape: tuple[int, ...], size: int) -> bytes:
    npy.check_writable(dtype)
    return npy.write_header(dtype, shape)


def _safetensors_head(dtype: DType, shape: tuple[int, ...], size: int) -> bytes:
    safetensors_answer.check_writable(dtype, "/accept")
    return write_header("tensor", dtype, shape, size)


NPY: Final = TensorCodec(
    "application/x-npy",
    frozenset(name for name, row in DTYPES.items() if row.npy is not None),
    in_query=False,
    is_meant=lambda head: head[: len(npy.MAGIC)] == npy.MAGIC,
    read_start=lambda head, fields, memory: npy.read_start(head),
    write_head=_npy_head,
)
SAFETENSORS_FILE: Final = TensorCodec(
    SAFETENSORS.decode(),
    _OF_SAFETENSORS,
    in_query=False,
    is_meant=lambda head: head[8:9] == b"{",
    read_start=lambda head, fields, memory: upload.read_start(head, memory),
    write_head=_safetensors_head,
)
RAW: Final = TensorCodec(
    "application/octet-stream",
    _ALL,
    in_query=True,
    is_meant=lambda head: False,
    read_start=lambda head, fields, memory: _read_raw_start(fields),
    write_head=lambda dtype, shape, size: b"",
)
TENSORS: Final[Mapping[str, TensorCodec]] = {row.media_type: row for row in (NPY, SAFETENSORS_FILE, RAW)}
MEDIA_TYPES: Final = f"{', '.join(list(TENSORS)[:-1])} and {list(TENSORS)[-1]}"
"""The formats of whole tensors, for error messages."""


_DAMAGED: Final = re.compile(rb"[^{]{0,3}NUMPY|[^{]{1,7}\{\"", re.DOTALL)
"""Matches the start of an npy or safetensors file that lost bytes or was sent as text, for example by curl's '-d'."""
WHOLE_FILE_HINT: Final = (
    "Send the bytes of the file as they are, as 'curl -T FILE' and '--data-binary @FILE' do: '-d' and text mode leave "
    "bytes out."
)


def start_of(
    codec: TensorCodec | None,
    head: bytes | bytearray,
    fields: dict[str, str],
    *,
    whole: bool,
    memory: Memory = UNCOUNTED,
) -> Start | None:
    """Parse the first bytes of an upload.

    Returns None if more bytes are needed; `whole` means that no more will follow. `codec` is the format of the media
    type. If it is None, npy and safetensors are recognized by their first bytes. An octet-stream without dtype and
    shape that begins with npy's magic is read as npy. `fields` is the query. `memory` is charged for reading a header.
    Raises malformed_request, limit_exceeded, unsupported_media_type, unsupported_dtype, invalid_field,
    element_count_mismatch, and any error of charging.
    """
    if codec is RAW and "dtype" not in fields and "shape" not in fields:
        # Browsers and curl send files as octet-stream by default.
        if len(head) < len(npy.MAGIC) and not whole:
            return None
        if NPY.is_meant(head):
            codec = NPY
    if codec is None or not codec.in_query:
        for name in ("dtype", "shape"):
            if name in fields:
                raise GatherError(
                    "invalid_field",
                    f"{name} is for {RAW.media_type}; other formats contain it",
                    pointer=f"/query/{name}",
                    hint=f"Leave out '{name}' in the query, or send 'Content-Type: {RAW.media_type}' with bare items.",
                )
    if codec is None:
        if len(head) < 9 and not whole:
            return None
        codec = next((row for row in TENSORS.values() if row.is_meant(head)), None)
        if codec is None:
            raise GatherError(
                "unsupported_media_type",
                f"the body is neither npy nor safetensors; say its Content-Type: {NPY.media_type}, "
                f"{SAFETENSORS_FILE.media_type}, or {RAW.media_type} with dtype= and shape= in the query",
                hint=WHOLE_FILE_HINT
                if _DAMAGED.match(head)
                else f"Send 'Content-Type: {RAW.media_type}' with dtype= and shape= in the query, or an npy file.",
            )
    start = codec.read_start(head, fields, memory)
    if start is None and whole:
        hint = npy.UNSOUND_HINT if codec is NPY else UNSOUND_HINT
        raise GatherError("malformed_request", f"the {codec.media_type} body ends within its header", hint=hint)
    return start

"""The table of body formats: media type, reader, writer, and the element types that each carries.

The same rows read requests and write answers of every family. Whole tensors have their own table. The inference
protocol is not here: its routes have one format, whatever the headers say (`app.formats.oip.read_body`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from app.errors import GatherError
from app.formats import npy, octet_stream
from app.formats.json import read_request as json_request
from app.formats.json import write_answer as json_answer
from app.formats.npy import Start
from app.formats.safetensors import read_request as safetensors_request
from app.formats.safetensors import upload
from app.formats.safetensors import write_answer as safetensors_answer
from app.formats.safetensors.header import UNSOUND_HINT, write_header
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Answer, Encoding
from app.tensors.operator_signature import Signature
from app.tensors.shape_limits import Limits

_ALL: Final = frozenset(DTYPES)
_OF_SAFETENSORS: Final = frozenset(name for name, row in DTYPES.items() if row.safetensors is not None)
LONG_JSON: Final = 1 << 16
"""Bodies of more bytes are read on a pool thread, so that the event loop stays free."""
LONG_BINARY: Final = 1 << 23
"""The same limit for binary bodies, whose items are at most checked (bool) or moved."""
LONG_HEADER: Final = 1 << 13
"""The same limit for the headers of binary bodies."""
LONG_LOOKUP: Final = 1 << 14
"""The same limit for JSON bodies of lookups, most of which become Python objects."""


@dataclass(frozen=True, slots=True, eq=False)
class Codec:
    """A format of requests and answers, for every family of requests.

    `read` makes a call of a body, its query, the signature of the request and the limits; it charges memory before it
    allocates. `write` makes the body of an answer whose dtypes are among `dtypes`. A body longer than `short_body`
    bytes for which `is_long_body` is true is not read on the event loop, and an answer for which `is_long_answer` is
    true is not written there. A `binary` answer is the raw items; its header fields say what JSON says beside the
    output. `check_writable` raises unsupported_dtype, at a pointer, for a type that `dtypes` lacks. `compiled` says
    that compiled code, which must be ready, reads the format.
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
    short_body=LONG_HEADER,  # a header is no longer than its body
    is_long_body=lambda body: len(body) > LONG_BINARY or safetensors_request.header_size(body) > LONG_HEADER,
    is_long_answer=lambda answer: False,
    check_writable=safetensors_answer.check_writable,
)
FORMATS: Final[Formats] = {JSON: _JSON, SAFETENSORS: _SAFETENSORS}
_OF_LOOKUPS: Final[Formats] = {JSON: replace(_JSON, short_body=LONG_LOOKUP), SAFETENSORS: _SAFETENSORS}


def formats_of(signature: Signature) -> Formats:
    """The formats of a family of requests."""
    return _OF_LOOKUPS if signature.kind == "lookup" else FORMATS


@dataclass(frozen=True, slots=True, eq=False)
class TensorCodec:
    """A format of whole tensors.

    `read_start` parses the start of an upload, and its query; it returns None if it needs more bytes. `write_head`
    makes the bytes before the items of a download, from dtype, shape and the items' size. `is_meant` recognizes an
    upload without a media type by its first bytes. `in_query` says that dtype and shape are in the query.
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
    read_start=lambda head, fields, memory: octet_stream.read_start(fields),
    write_head=lambda dtype, shape, size: b"",
)
TENSORS: Final[Mapping[str, TensorCodec]] = {row.media_type: row for row in (NPY, SAFETENSORS_FILE, RAW)}
MEDIA_TYPES: Final = f"{', '.join(list(TENSORS)[:-1])} and {list(TENSORS)[-1]}"
"""The formats of whole tensors, for a sentence."""


_DAMAGED: Final = re.compile(rb"[^{]{0,3}NUMPY|[^{]{1,7}\{\"", re.DOTALL)
"""The error for the start of an npy or safetensors file that lacks bytes or was sent as text, as curl's '-d' does."""
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
    """Parse the first bytes of an upload, None if more are needed; `whole` says that there are no more.

    `codec` is that of its media type, None if that does not name a format: then npy or safetensors, by their magic. An
    octet-stream without dtype and shape that begins with npy's magic is npy. `fields` is the query; `memory` is charged
    with what reading a header takes. Raises malformed_request, limit_exceeded, unsupported_media_type,
    unsupported_dtype, invalid_field, element_count_mismatch, and what charging raises.
    """
    if codec is RAW and "dtype" not in fields and "shape" not in fields:
        # Browsers and curl send a file as octet-stream by default.
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

"""The formats of bodies, a row each: media type, who reads and writes it, and which element types it carries.

Each family of operators (gathers and scatters, gradients, lookups) has a table of `Codec` rows. Scatters into resident
tensors, whose answers have no tensor, and whole tensors, up and down, have tables of their own. The inference protocol
is not here: its routes have one format, whatever a header says (`v2_request_tensors`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from app.errors import GatherError
from app.formats.json.query import refuse_query
from app.formats.json.read_request import read_request
from app.tensors.backward_call import BackwardCall, BackwardSignature
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Answer, Call, Encoding
from app.tensors.lookup_call import LookupCall, LookupSignature
from app.tensors.operator_signature import Signature
from app.tensors.scatter_call import TABLE_SCATTER, ScatterCall
from app.tensors.shape_limits import Limits
from app.wire import (
    npy,
    octet_stream_upload,
    safetensors,
    safetensors_backward,
    safetensors_header,
    safetensors_lookup,
    safetensors_scatter,
    safetensors_upload,
)
from app.wire.json import backward_messages, gather_messages, lookup_messages
from app.wire.little_endian_items import Charge, Memory
from app.wire.npy import Start
from app.wire.safetensors_header import UNSOUND_HINT

_ALL: Final = frozenset(DTYPES)
_OF_SAFETENSORS: Final = frozenset(name for name, row in DTYPES.items() if row.safetensors is not None)
LONG_JSON: Final = 1 << 16
"""Bodies of more bytes are read on a pool thread, so that the event loop stays free."""
LONG_BINARY: Final = 1 << 23
"""The same for binary bodies, whose items are at most looked at (bool) or moved."""
LONG_HEADER: Final = 1 << 13
"""The same for their headers."""
LONG_LOOKUP: Final = 1 << 14
"""The same for bodies of lookups in JSON, and for their headers in safetensors: what is no array becomes objects."""


Row = TypeVar("Row")
Request = TypeVar("Request")


Reader = Callable[[Buffer, bytes, Row, Limits, Charge | None], tuple[Request, Encoding]]
Writer = Callable[[Answer, Encoding, Memory | None], bytes | list[Buffer]]


@dataclass(frozen=True, slots=True, eq=False)
class Codec(Generic[Row, Request]):
    """A format of one family of operators.

    `read` makes a call of a body, its query, the operator's signature and the limits; its charge is told of memory, in
    bytes, before it is taken. `write` makes the body of an answer whose dtypes are among `dtypes`. A body of more than
    `short_body` bytes for which `is_long_body` is true is not read on the event loop. A `binary` answer is the items as
    they are, so that no output takes long to write, and says in its header what JSON says beside the output.
    `check_writable` raises unsupported_dtype, at a pointer, for a type that `dtypes` lacks.
    """

    media_type: bytes
    dtypes: frozenset[str]
    binary: bool
    read: Reader[Row, Request]
    write: Writer
    short_body: int
    is_long_body: Callable[[Buffer], bool]
    check_writable: Callable[[DType, str], None]


AnyCodec = Codec[Any, Any]
Formats = Mapping[bytes, Codec[Row, Request]]
"""The formats of a family by media type."""
JSON: Final = b"application/json"
SAFETENSORS: Final = b"application/x-safetensors"


def _json(read: Reader[Row, Request], write: Writer, short_body: int = LONG_JSON) -> Codec[Row, Request]:
    return Codec(
        JSON,
        _ALL,
        False,
        read,
        write,
        short_body,
        is_long_body=lambda body: True,
        check_writable=lambda dtype, pointer: None,
    )


def _safetensors(read: Reader[Row, Request], write: Writer, long_header: int = LONG_HEADER) -> Codec[Row, Request]:
    """A header is no longer than its body."""
    return Codec(
        SAFETENSORS,
        _OF_SAFETENSORS,
        True,
        read,
        write,
        long_header,
        is_long_body=lambda body: len(body) > LONG_BINARY or safetensors.header_size(body) > long_header,
        check_writable=safetensors.check_writable,
    )


def _formats(*rows: Codec[Row, Request]) -> Formats[Row, Request]:
    return {row.media_type: row for row in rows}


GATHERS: Final[Formats[Signature, Call]] = _formats(
    _json(read_request, gather_messages.write_answer),
    _safetensors(safetensors.read_call, safetensors.write_answer),
)
BACKWARDS: Final[Formats[BackwardSignature, BackwardCall]] = _formats(
    _json(read_request, backward_messages.write_backward),
    _safetensors(safetensors_backward.read_backward, safetensors_backward.write_backward),
)
LOOKUPS: Final[Formats[LookupSignature, LookupCall]] = _formats(
    _json(read_request, lookup_messages.write_lookup, LONG_LOOKUP),
    _safetensors(
        lambda body, query, row, limits, charge: safetensors_lookup.read_lookup(body, query, limits, charge),
        safetensors_lookup.write_lookup,
        LONG_LOOKUP,
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class ScatterCodec:
    """A format of scatters' requests; a `compiled` one is read by compiled code, which must be ready.

    `check_query` refuses a query before the body has arrived; `read` makes a call of body, query and limits.
    """

    media_type: bytes
    binary: bool
    compiled: bool
    check_query: Callable[[bytes], None]
    read: Callable[[Buffer, bytes, Limits, Charge], ScatterCall]


SCATTERS: Final[Mapping[bytes, ScatterCodec]] = {
    row.media_type: row
    for row in (
        ScatterCodec(
            JSON,
            binary=False,
            compiled=True,
            check_query=lambda query: refuse_query(query, TABLE_SCATTER),
            read=lambda body, query, limits, charge: read_request(body, query, TABLE_SCATTER, limits, charge)[0],
        ),
        ScatterCodec(
            SAFETENSORS,
            binary=True,
            compiled=False,
            check_query=lambda query: None,
            read=lambda body, query, limits, charge: safetensors_scatter.read_safetensors(body, query, charge),
        ),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class TensorCodec:
    """A format of whole tensors.

    `read_start` makes of the first bytes of an upload, and its query, what it says of itself, None where more bytes are
    needed. `write_head` makes what stands before the items of a download, of dtype, shape and the items' bytes.
    `is_meant` knows an upload without a media type by its first bytes. Where `in_query`, dtype and shape stand there.
    """

    media_type: str
    dtypes: frozenset[str]
    in_query: bool
    is_meant: Callable[[bytes | bytearray], bool]
    read_start: Callable[[bytes | bytearray, dict[str, str], Charge | None], Start | None]
    write_head: Callable[[DType, tuple[int, ...], int], bytes]


def _npy_head(dtype: DType, shape: tuple[int, ...], size: int) -> bytes:
    npy.check_writable(dtype)
    return npy.write_header(dtype, shape)


def _safetensors_head(dtype: DType, shape: tuple[int, ...], size: int) -> bytes:
    safetensors.check_writable(dtype, "/accept")
    return safetensors_header.write_header("tensor", dtype, shape, size)


NPY: Final = TensorCodec(
    "application/x-npy",
    frozenset(name for name, row in DTYPES.items() if row.npy is not None),
    in_query=False,
    is_meant=lambda head: head[: len(npy.MAGIC)] == npy.MAGIC,
    read_start=lambda head, fields, charge: npy.read_start(head),
    write_head=_npy_head,
)
SAFETENSORS_FILE: Final = TensorCodec(
    SAFETENSORS.decode(),
    _OF_SAFETENSORS,
    in_query=False,
    is_meant=lambda head: head[8:9] == b"{",
    read_start=lambda head, fields, charge: safetensors_upload.read_start(head, charge),
    write_head=_safetensors_head,
)
RAW: Final = TensorCodec(
    "application/octet-stream",
    _ALL,
    in_query=True,
    is_meant=lambda head: False,
    read_start=lambda head, fields, charge: octet_stream_upload.read_start(fields),
    write_head=lambda dtype, shape, size: b"",
)
TENSORS: Final[Mapping[str, TensorCodec]] = {row.media_type: row for row in (NPY, SAFETENSORS_FILE, RAW)}
MEDIA_TYPES: Final = f"{', '.join(list(TENSORS)[:-1])} and {list(TENSORS)[-1]}"
"""The formats of whole tensors, for a sentence."""


_DAMAGED: Final = re.compile(rb"[^{]{0,3}NUMPY|[^{]{1,7}\{\"", re.DOTALL)
"""The start of an npy or safetensors file that lacks bytes or was written as text, as '-d' of curl does it."""
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
    charge: Charge | None = None,
) -> Start | None:
    """What the first bytes of an upload say, None where more are needed; `whole` says that there are no more.

    `codec` is that of its media type, None where it says nothing of the format: then npy or safetensors, by their
    magic. What comes as octet-stream without dtype and shape, and begins with npy's magic, is npy. `fields` is the
    query; `charge` is told what reading a header takes, in bytes, before it does. Raises malformed_request,
    limit_exceeded, unsupported_media_type, unsupported_dtype, invalid_field, element_count_mismatch, and what `charge`
    raises.
    """
    if codec is RAW and "dtype" not in fields and "shape" not in fields:
        # Browsers and curl send a file as octet-stream by themselves.
        if len(head) < len(npy.MAGIC) and not whole:
            return None
        if NPY.is_meant(head):
            codec = NPY
    if codec is None or not codec.in_query:
        for name in ("dtype", "shape"):
            if name in fields:
                raise GatherError(
                    "invalid_field",
                    f"{name} is for {RAW.media_type}; other formats say it themselves",
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
    start = codec.read_start(head, fields, charge)
    if start is None and whole:
        hint = npy.UNSOUND_HINT if codec is NPY else UNSOUND_HINT
        raise GatherError("malformed_request", f"the {codec.media_type} body ends within its header", hint=hint)
    return start

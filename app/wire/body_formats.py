"""The formats of bodies, a row each: media type, who reads and writes it, and which element types it carries.

There are five tables: of gathers' requests and answers, of their gradients', of lookups', of scatters' requests, and of
whole tensors, up and down. The inference protocol is not among them: its routes have one format, whatever a header says
(`v2_request_tensors`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.errors import GatherError
from app.formats.json.query import refuse_query
from app.formats.json.read_request import read_request
from app.tensors.backward_call import BackwardAnswer, BackwardCall, BackwardSignature
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Answer, Call, Encoding
from app.tensors.lookup_call import LOOKUP_SIGNATURE, LookupAnswer, LookupCall
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


@dataclass(frozen=True, slots=True, eq=False)
class GatherCodec:
    """A format of gathers.

    `read` makes a call of body, query, operator and limits; its charge is told of memory, in bytes, before it is taken.
    `write` makes the body of an answer, whose dtype is among `dtypes`. A body of more than `short_body` bytes of which
    `is_long_body` says so is not read on the event loop. A `binary` answer is the items as they are, so that no output
    takes long to write, and says in its header what JSON says beside the output.
    """

    media_type: bytes
    dtypes: frozenset[str]
    binary: bool
    read: Callable[[Buffer, bytes, Signature, Limits, Charge | None], tuple[Call, Encoding]]
    write: Callable[[Answer, Encoding, Memory | None], bytes | list[Buffer]]
    short_body: int
    is_long_body: Callable[[Buffer], bool]
    check_writable: Callable[[DType, str], None]


JSON: Final = GatherCodec(
    b"application/json",
    _ALL,
    binary=False,
    read=read_request,
    write=gather_messages.write_answer,
    short_body=LONG_JSON,
    is_long_body=lambda body: True,
    check_writable=lambda dtype, pointer: None,
)
SAFETENSORS: Final = GatherCodec(
    b"application/x-safetensors",
    _OF_SAFETENSORS,
    binary=True,
    read=safetensors.read_call,
    write=safetensors.write_answer,
    short_body=LONG_HEADER,  # a header is no longer than its body
    is_long_body=lambda body: len(body) > LONG_BINARY or safetensors.header_size(body) > LONG_HEADER,
    check_writable=safetensors.check_writable,
)
GATHERS: Final[Mapping[bytes, GatherCodec]] = {row.media_type: row for row in (JSON, SAFETENSORS)}


LONG_LOOKUP: Final = 1 << 14
"""Bodies of lookups of more bytes are read on a pool thread: what is no array of theirs becomes Python objects."""


@dataclass(frozen=True, slots=True, eq=False)
class LookupCodec:
    """A format of lookups, as `GatherCodec` is one of gathers; a body of more than `short_body` bytes is read on a pool
    thread, or where it is `binary` one whose header has more.
    """

    media_type: bytes
    dtypes: frozenset[str]
    binary: bool
    read: Callable[[Buffer, bytes, Limits, Charge | None], tuple[LookupCall, Encoding]]
    write: Callable[[LookupAnswer, Encoding, Memory | None], list[Buffer]]
    is_long_body: Callable[[Buffer], bool]


LOOKUPS: Final[Mapping[bytes, LookupCodec]] = {
    row.media_type: row
    for row in (
        LookupCodec(
            JSON.media_type,
            _ALL,
            binary=False,
            read=lambda body, query, limits, charge: read_request(body, query, LOOKUP_SIGNATURE, limits, charge),
            write=lookup_messages.write_lookup,
            is_long_body=lambda body: len(body) > LONG_LOOKUP,
        ),
        LookupCodec(
            SAFETENSORS.media_type,
            _OF_SAFETENSORS,
            binary=True,
            read=safetensors_lookup.read_lookup,
            write=safetensors_lookup.write_lookup,
            is_long_body=lambda body: len(body) > LONG_BINARY or safetensors.header_size(body) > LONG_LOOKUP,
        ),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class BackwardCodec:
    """A format of gradients, whose types every format has; the attributes are those of `GatherCodec`."""

    media_type: bytes
    binary: bool
    read: Callable[[Buffer, bytes, BackwardSignature, Limits, Charge | None], tuple[BackwardCall, Encoding]]
    write: Callable[[BackwardAnswer, Encoding, Memory | None], bytes | list[Buffer]]
    is_long_body: Callable[[Buffer], bool]


BACKWARDS: Final[Mapping[bytes, BackwardCodec]] = {
    row.media_type: row
    for row in (
        BackwardCodec(
            JSON.media_type,
            binary=False,
            read=read_request,
            write=backward_messages.write_backward,
            is_long_body=lambda body: len(body) > LONG_JSON,
        ),
        BackwardCodec(
            SAFETENSORS.media_type,
            binary=True,
            read=safetensors_backward.read_backward,
            write=safetensors_backward.write_backward,
            is_long_body=SAFETENSORS.is_long_body,
        ),
    )
}


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
            JSON.media_type,
            binary=False,
            compiled=True,
            check_query=lambda query: refuse_query(query, TABLE_SCATTER),
            read=lambda body, query, limits, charge: read_request(body, query, TABLE_SCATTER, limits, charge)[0],
        ),
        ScatterCodec(
            SAFETENSORS.media_type,
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
    frozenset(name for name in DTYPES if name not in ("bfloat16", "string")),
    in_query=False,
    is_meant=lambda head: head[: len(npy.MAGIC)] == npy.MAGIC,
    read_start=lambda head, fields, charge: npy.read_start(head),
    write_head=_npy_head,
)
SAFETENSORS_FILE: Final = TensorCodec(
    SAFETENSORS.media_type.decode(),
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

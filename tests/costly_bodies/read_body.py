"""A body, and what hands it to its codec: `read`, or where it is compressed `read_coded`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from app.api.request_body import inflate
from app.errors import Code, GatherError
from app.formats import body_formats
from app.formats.grpc.infer_request import ParsedMessage, parse, read_grpc_request
from app.formats.grpc.message_fields import split
from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import LOOKUP_MODEL, Model
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.memory.budget import UNCOUNTED, Memory
from app.operators.registry import GRADIENTS, OPERATORS
from app.requests.split_query_string import read_query
from app.tensors.lookup_call import LOOKUP_SIGNATURE
from app.tensors.scatter_call import TABLE_SCATTER
from app.tensors.shape_limits import Limits

TextCodec = Literal["native", "scatter", "elements", "backward", "lookup", "v2", "v2 elements", "v2 lookup"]
"""Formats that are JSON: of a gather, of a scatter into a resident tensor, of ScatterElements, of a gradient, of a
lookup, and of the inference protocol, where items may follow it."""
BinaryCodec = Literal[
    "safetensors",
    "safetensors scatter",
    "safetensors elements",
    "safetensors backward",
    "safetensors lookup",
    "upload",
    "grpc",
    "grpc lookup",
]
"""Formats that are not; messages of the inference protocol over gRPC are among them."""
Codec = TextCodec | BinaryCodec
_GATHER: Final = OPERATORS["gathernd"].signature
_ELEMENTS: Final = OPERATORS["scatter_elements"].signature
_BACKWARD: Final = GRADIENTS["gathernd_backward"].signature
MODEL: Final = Model("gathernd", _GATHER)
_MODEL_OF_ELEMENTS: Final = Model("scatter_elements", _ELEMENTS)


class Body(NamedTuple):
    """A body, or what a request has in place of one; `json_size` is Inference-Header-Content-Length."""

    name: str
    codec: Codec
    content: bytes
    query: bytes = b""
    json_size: int | None = None
    kind: str = ""

    @property
    def text(self) -> bool:
        """Whether all of it is JSON."""
        return not self.codec.startswith(("safetensors", "upload", "grpc")) and self.json_size is None


def _read_native(body: Body, limits: Limits, memory: Memory) -> None:
    call, _ = read_request(body.content, b"", _GATHER if body.codec == "native" else _ELEMENTS, limits, memory)
    if call.over_limit is not None:
        raise call.over_limit


def _read_upload(body: Body, limits: Limits, memory: Memory) -> None:
    fields = read_query(body.query, ("dtype", "shape", "prefault", "lock"))
    body_formats.start_of(body_formats.TENSORS.get(body.kind), body.content, fields, whole=True, memory=memory)


def _parsed(body: Body, limits: Limits, memory: Memory) -> ParsedMessage:
    found = split(bytes(body.content), limits.features)
    assert found is not None
    return parse(found, memory)


_READERS: Final[Mapping[Codec, Callable[[Body, Limits, Memory], object]]] = {
    "native": _read_native,
    "elements": _read_native,
    "scatter": lambda body, limits, memory: read_request(body.content, b"", TABLE_SCATTER, limits, memory),
    "backward": lambda body, limits, memory: read_request(body.content, body.query, _BACKWARD, limits, memory),
    "lookup": lambda body, limits, memory: read_request(body.content, body.query, LOOKUP_SIGNATURE, limits, memory),
    "v2": lambda body, limits, memory: read_body((body.content, body.json_size), MODEL, limits, memory),
    "v2 elements": lambda body, limits, memory: read_body(
        (body.content, body.json_size), _MODEL_OF_ELEMENTS, limits, memory
    ),
    "v2 lookup": lambda body, limits, memory: read_body((body.content, body.json_size), LOOKUP_MODEL, limits, memory),
    "safetensors": lambda body, limits, memory: read_safetensors(body.content, body.query, _GATHER, limits, memory),
    "safetensors elements": lambda body, limits, memory: read_safetensors(
        body.content, body.query, _ELEMENTS, limits, memory
    ),
    "safetensors scatter": lambda body, limits, memory: read_safetensors(
        body.content, body.query, TABLE_SCATTER, limits, memory
    ),
    "safetensors backward": lambda body, limits, memory: read_safetensors(
        body.content, body.query, _BACKWARD, limits, memory
    ),
    "safetensors lookup": lambda body, limits, memory: read_safetensors(
        body.content, body.query, LOOKUP_SIGNATURE, limits, memory
    ),
    "upload": _read_upload,
    "grpc": lambda body, limits, memory: read_grpc_request(_parsed(body, limits, memory), MODEL, limits, memory),
    "grpc lookup": lambda body, limits, memory: read_grpc_request(
        _parsed(body, limits, memory), LOOKUP_MODEL, limits, memory
    ),
}


def read(body: Body, memory: Memory = UNCOUNTED) -> Code | None:
    """Have the codec read it: the code of its refusal, None where it takes it."""
    try:
        _READERS[body.codec](body, Limits(), memory)
    except GatherError as error:
        return error.code
    return None


def _deflated(content: bytes, level: int, window: int, flush_every: int = 0) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, window)
    step = flush_every or max(1, len(content))
    text = bytearray()
    for start in range(0, len(content), step):
        text += stream.compress(content[start : start + step])
        if flush_every:
            text += stream.flush(zlib.Z_FULL_FLUSH)
    return bytes(text + stream.flush())


_GZIP: Final = zlib.MAX_WBITS | 16
CODINGS: Final[dict[str, tuple[bytes, Callable[[bytes], bytes]]]] = {
    "gzip": (b"gzip", lambda content: _deflated(content, 9, _GZIP)),
    "gzip, not compressed": (b"gzip", lambda content: _deflated(content, 0, _GZIP)),
    "gzip, many blocks": (b"gzip", lambda content: _deflated(content, 6, _GZIP, flush_every=200)),
    "deflate": (b"deflate", lambda content: _deflated(content, 9, zlib.MAX_WBITS)),
    "raw deflate": (b"deflate", lambda content: _deflated(content, 9, -zlib.MAX_WBITS)),
    "deflate, cut": (b"deflate", lambda content: _deflated(content, 9, zlib.MAX_WBITS)[:-3]),
    "deflate, bytes behind it": (b"deflate", lambda content: _deflated(content, 9, zlib.MAX_WBITS) + bytes(100)),
}
"""Content-Encoding, and what makes a body of that coding, by a name for it."""


def read_coded(body: Body, encoding: bytes, coded: bytes, cap: int, memory: Memory = UNCOUNTED) -> Code | None:
    """As `read`, of the body that `coded` inflates to, `cap` bytes at most; `body` says what else the request has."""
    try:
        content = inflate(coded, encoding, cap, memory)
    except GatherError as error:
        return error.code
    return read(body._replace(content=content), memory)  # type: ignore[arg-type]  # codecs take any buffer

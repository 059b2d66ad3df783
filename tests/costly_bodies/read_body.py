"""Hostile bodies: the request that carries one, and `read`, which passes its bytes to the codec."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from app.errors import Code, GatherError
from app.formats import body_formats
from app.formats.grpc.infer_request import parse, read_grpc_request
from app.formats.grpc.message_fields import split
from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import LOOKUP_MODEL, Model
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.memory.budget import UNCOUNTED, Memory
from app.operators.registry import GRADIENTS, OPERATORS
from app.requests.split_query_string import read_query
from app.tensors.lookup_call import LOOKUP_SIGNATURE
from app.tensors.operator_signature import Signature
from app.tensors.scatter_call import TABLE_SCATTER
from app.tensors.shape_limits import Limits

RESIDENT: Final = "a"
"""The resident tensor that bodies name."""
MODEL: Final = Model("gathernd", OPERATORS["gathernd"].signature)
_SIGNATURES: Final[Mapping[str, Signature]] = {
    "gathernd": OPERATORS["gathernd"].signature,
    "scatter_elements": OPERATORS["scatter_elements"].signature,
    "gathernd/backward": GRADIENTS["gathernd_backward"].signature,
    "lookup": LOOKUP_SIGNATURE,
    f"tensors/{RESIDENT}/scatter": TABLE_SCATTER,
}
_MODELS: Final = {
    "gathernd": MODEL,
    "scatter_elements": Model("scatter_elements", _SIGNATURES["scatter_elements"]),
    "lookup": LOOKUP_MODEL,
}


class Body(NamedTuple):
    """A body in a format ("json", "safetensors", "v2", "grpc" or "upload") for a route, or for a model of the protocol.

    `json_size` is Inference-Header-Content-Length.
    """

    name: str
    format: str
    to: str
    content: bytes
    query: bytes = b""
    json_size: int | None = None
    kind: str = ""

    def request(self) -> tuple[str, str, dict[str, str]]:
        """Method, path and header fields of the request over HTTP that has this body."""
        path = f"/v2/models/{self.to}/infer" if self.format == "v2" else f"/{self.to}"
        if self.query:
            path += f"?{self.query.decode()}"
        fields = {"content-type": self.kind} if self.kind else {}
        if self.format == "safetensors":
            fields["content-type"] = body_formats.SAFETENSORS_FILE.media_type
        if self.json_size is not None:
            fields["inference-header-content-length"] = str(self.json_size)
        return "PUT" if self.format == "upload" else "POST", path, fields


def _read(body: Body, limits: Limits, memory: Memory) -> None:
    match body.format:
        case "json":
            call, _ = read_request(body.content, body.query, _SIGNATURES[body.to], limits, memory)
            if getattr(call, "over_limit", None) is not None:
                raise call.over_limit
        case "safetensors":
            read_safetensors(body.content, body.query, _SIGNATURES[body.to], limits, memory)
        case "v2":
            read_body((body.content, body.json_size), _MODELS[body.to], limits, memory)
        case "grpc":
            found = split(bytes(body.content), limits.features)
            assert found is not None
            read_grpc_request(parse(found, memory), _MODELS[body.to], limits, memory)
        case _:
            fields = read_query(body.query, ("dtype", "shape", "prefault", "lock"))
            body_formats.start_of(body_formats.TENSORS.get(body.kind), body.content, fields, whole=True, memory=memory)


def read(body: Body, memory: Memory = UNCOUNTED) -> Code | None:
    """Have the codec read it: the code of its refusal, or None."""
    try:
        _read(body, Limits(), memory)
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
    "gzip, many blocks": (b"gzip", lambda content: _deflated(content, 6, _GZIP, flush_every=200)),
    "deflate": (b"deflate", lambda content: _deflated(content, 9, zlib.MAX_WBITS)),
    "raw deflate": (b"deflate", lambda content: _deflated(content, 9, -zlib.MAX_WBITS)),
    "deflate, cut": (b"deflate", lambda content: _deflated(content, 9, zlib.MAX_WBITS)[:-3]),
    "deflate, bytes behind it": (b"deflate", lambda content: _deflated(content, 9, zlib.MAX_WBITS) + bytes(100)),
}
"""Content-Encoding, and what makes a body of that coding, by a name for it."""

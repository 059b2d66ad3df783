"""The JSON of `POST /lookup`: a body to a `LookupCall`, a `LookupAnswer` to its body.

It is read as the body of a gather is (`gather_messages`), by the same functions; there may be thousands of arrays.
"""

from __future__ import annotations

import orjson

from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Encoding
from app.tensors.lookup_call import LookupAnswer
from app.wire.json.write_values import tensor_text
from app.wire.little_endian_items import Memory


def write_lookup(answer: LookupAnswer, encoding: Encoding, memory: Memory | None = None) -> list[Buffer]:
    """The body of `answer`, in pieces; `memory` is charged with it. Raises what charging raises."""
    pieces: list[Buffer] = [b'{"output":' if answer.joined else b'{"outputs":[']
    for number, output in enumerate(answer.outputs):
        if number:
            pieces.append(b",")
        pieces += tensor_text(output, encoding, memory)
    pieces.append(b"," if answer.joined else b"],")
    pieces.append(answer_fields(answer)[1:])
    return pieces


def answer_fields(answer: LookupAnswer) -> bytes:
    """What an answer says beside its outputs, a JSON object."""
    features = [
        {"tensor": tensor, "data_etag": etag, "version": version}
        for tensor, etag, version in zip(answer.tensors, answer.etags, answer.versions, strict=True)
    ]
    replaced = {} if answer.replaced is None else {"replaced": answer.replaced}
    return orjson.dumps({"features": features, **replaced})

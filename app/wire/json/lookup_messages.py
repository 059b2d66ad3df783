"""The JSON of `POST /lookup`: a body to a `LookupCall`, a `Answer` to its body.

It is read as the body of a gather is (`gather_messages`), by the same functions; there may be thousands of arrays.
"""

from __future__ import annotations

import orjson

from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import OUTPUT, Answer, Encoding
from app.wire.json.write_values import tensor_text
from app.wire.little_endian_items import Memory


def write_lookup(answer: Answer, encoding: Encoding, memory: Memory | None = None) -> list[Buffer]:
    """The body of `answer`, in pieces; `memory` is charged with it. Raises what charging raises."""
    joined = OUTPUT in answer.outputs
    pieces: list[Buffer] = [b'{"output":' if joined else b'{"outputs":[']
    for number, output in enumerate(answer.outputs.values()):
        if number:
            pieces.append(b",")
        pieces += tensor_text(output, encoding, memory)
    pieces.append(b"," if joined else b"],")
    pieces.append(answer_fields(answer)[1:])
    return pieces


def answer_fields(answer: Answer) -> bytes:
    """What an answer says beside its outputs, a JSON object."""
    features = [{"tensor": table.tensor, "data_etag": table.etag, "version": table.version} for table in answer.tables]
    replaced = {} if answer.replaced is None else {"replaced": answer.replaced}
    return orjson.dumps({"features": features, **replaced})

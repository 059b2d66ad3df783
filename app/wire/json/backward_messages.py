"""The JSON of gradients: the body of a request to a `BackwardCall`, a `Answer` to its body.

A body is read as that of a gather is (`gather_messages`), by the same functions.
"""

from __future__ import annotations

import orjson

from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Answer, Encoding
from app.wire.json.write_values import tensor_text
from app.wire.little_endian_items import Memory

_JOINED = 1 << 16


def write_backward(answer: Answer, encoding: Encoding, memory: Memory | None = None) -> bytes | list[Buffer]:
    """The body of `answer`, in pieces where it is large; `memory` is charged with it. Raises what charging raises."""
    pieces: list[Buffer] = []
    for name, tensor in answer.outputs.items():
        pieces.append(f'{"," if pieces else "{"}"{name}":'.encode())
        pieces += tensor_text(tensor, encoding, memory)
    pieces.append(f',"dialect":{orjson.dumps(answer.dialect).decode()},"device":"{answer.device}"}}'.encode())
    return pieces if sum(map(len, pieces)) > _JOINED else b"".join(pieces)

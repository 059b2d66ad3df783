"""Encodes an `Answer` as a `ModelInferResponse` of the inference protocol over gRPC.

Items are always sent in raw_output_contents, as Triton does. They are copied once, into the message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from app.errors import GatherError
from app.formats.grpc.message_fields import varint
from app.formats.grpc.messages.classes import ModelInferResponse
from app.formats.json.write_answer import answer_fields
from app.formats.oip.infer_answer import VERSION, check_lookup_writable, check_writable
from app.formats.oip.infer_document import AskedInference, Model
from app.memory.budget import Memory
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Answer
from app.tensors.little_endian_items import packed_bytes
from app.tensors.lookup_call import LOOKUP
from app.tensors.tensor import Tensor

_ID: Final = b"\x1a"
_RAW: Final = b"\x32"
_INFER_RESPONSE: Final = b"\x12"
_ERROR_MESSAGE: Final = b"\x0a"
_MOST: Final = (1 << 31) - 1
_REMEMBERED: Final = 1 << 12
_OUTPUT_BYTES: Final = 256
"""Maximum size of a lookup's head that is cached, and an estimate of the head's size per output."""
_Parameter = tuple[str, str | int]
_Described = tuple[str, str, tuple[int, ...]]


def write_grpc_answer(
    answer: Answer, model: Model, asked: AskedInference, memory: Memory, *, stream: bool = False
) -> bytes:
    """Return the message for `answer`; with `stream`, it is a ModelStreamInferResponse. Charges `memory` for it.

    Raises unsupported_dtype, output_too_large, and any error of charging.
    """
    parameters: list[_Parameter]
    write_head: Callable[..., bytes] = _repeated_head
    wanted = {name: answer.outputs[name] for name in asked.outputs or answer.outputs}
    if model.is_lookup:
        check_lookup_writable(answer)
        text = answer_fields(answer).decode()
        parameters = [("device", "cpu"), (LOOKUP, text)]
        if len(text) + len(wanted) * _OUTPUT_BYTES > _REMEMBERED:
            write_head = _message_head
    else:
        check_writable(answer.output.dtype)
        parameters = [("dialect", answer.dialect), ("device", answer.device)]
        if answer.data_etag is not None:
            parameters.append(("data_etag", answer.data_etag))
    parameters += answer.counts.items()
    described = tuple((name, str(output.dtype.oip), output.shape) for name, output in wanted.items())
    head = write_head(model.name, str(answer.data_version or VERSION), tuple(parameters), described)
    return _message(head, asked.identifier, tuple(wanted.values()), memory, stream)


def write_stream_error(message: str, head: bytes) -> bytes:
    """Return a ModelStreamInferResponse for a refused request; `head` is its ModelInferResponse."""
    text = message.encode("utf-8", "replace")
    return b"".join((_ERROR_MESSAGE, varint(len(text)), text, _INFER_RESPONSE, varint(len(head)), head))


def error_head(model_name: str, identifier: str, problem: str) -> bytes:
    """Return the ModelInferResponse for a refused request of a stream, with its id and its problem body."""
    response = ModelInferResponse(model_name=model_name, id=identifier)
    response.parameters["problem"].string_param = problem
    written: bytes = response.SerializeToString()
    return written


def _message_head(
    model_name: str, version: str, parameters: tuple[_Parameter, ...], outputs: tuple[_Described, ...]
) -> bytes:
    """Return a response without its id and items.

    The result is cached, because responses with the same shapes repeat it.
    """
    response = ModelInferResponse(model_name=model_name, model_version=version)
    for name, value in parameters:
        if isinstance(value, int):
            response.parameters[name].int64_param = value
        else:
            response.parameters[name].string_param = value
    for output, datatype, shape in outputs:
        response.outputs.add(name=output, datatype=datatype, shape=shape)
    written: bytes = response.SerializeToString(deterministic=True)
    return written


_repeated_head = lru_cache(256)(_message_head)


def _message(head: bytes, identifier: str | None, outputs: Sequence[Tensor], memory: Memory, stream: bool) -> bytes:
    pieces: list[Buffer] = [head]
    size = len(head)
    if identifier:
        text = identifier.encode()
        field = _ID + varint(len(text)) + text
        pieces.append(field)
        size += len(field)
    for output in outputs:
        items = packed_bytes(output, memory)
        tag = _RAW + varint(len(items))
        pieces += (tag, items)
        size += len(tag) + len(items)
    if size > _MOST:
        raise GatherError(
            "output_too_large",
            f"the answer would have {size} bytes; a message of gRPC has at most {_MOST}",
            facts={"limit": "grpc_message_bytes", "maximum": _MOST},
        )
    memory.charge(size)
    if stream:
        pieces.insert(0, _INFER_RESPONSE + varint(size))
    return b"".join(pieces)

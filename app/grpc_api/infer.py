"""Infer requests over gRPC, from the bytes of a message to the bytes of its response; see `app.api.routes.v2_infer`."""

from __future__ import annotations

from functools import partial
from typing import Final

from app.api.inference import Inference, InferFormat
from app.formats.grpc.infer_answer import write_grpc_answer
from app.formats.grpc.infer_request import LONG_REST, ParsedMessage, parse, read_grpc_request
from app.formats.grpc.message_fields import split
from app.formats.oip.infer_document import AskedInference, Model
from app.grpc_api.rpc_request import RpcRequest
from app.tensors.gather_call import Answer
from app.tensors.lookup_call import ARRAYS

_FEW_FIELDS: Final = 1 << 9
"""A message with more fields is split in a thread; each field takes up to 0.5 us."""
_RAW_BYTES: Final = 256
"""Bytes of Python objects per raw array."""
_LARGE_INPUT, _LARGE_OUTPUT = 1 << 20, 1 << 18
"""Items with more bytes are read, checked and copied in a thread."""


class RpcInference:
    """Answers infer requests over gRPC through `inference`."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._service = inference.service

    async def parse(self, message: bytes, request: RpcRequest) -> ParsedMessage:
        """Parse a message. Raises malformed_request, limit_exceeded, and any error of charging."""
        features, memory = self._service.limits.features, request.memory
        few = split(message, features, _FEW_FIELDS)
        if few is not None and len(few.rest) <= LONG_REST:
            return parse(few, memory)

        def parse_long() -> ParsedMessage:
            found = few
            if found is None:
                memory.charge(_RAW_BYTES * min(len(ARRAYS) * features, len(message)))
                found = split(message, features)
                assert found is not None
            return parse(found, memory)

        return await self._service.pool.run(parse_long, request)

    async def infer(self, message: bytes, request: RpcRequest, *, stream: bool = False) -> bytes:
        """Answer a ModelInferRequest; with `stream`, return a ModelStreamInferResponse.

        Raises GatherError and ClientGone.
        """
        parsed = await self.parse(message, request)
        inference, version = self._inference, parsed.version
        model = inference.models.find_quickly(parsed.model, version)
        _, written = await inference.infer(_STREAMED if stream else _UNARY, parsed, model, version, request)
        return written


def _is_long(parsed: ParsedMessage, model: Model) -> bool:
    del model
    return len(parsed.split.rest) > LONG_REST or sum(map(len, parsed.split.raws)) > _LARGE_INPUT


def _is_long_answer(answer: Answer, asked: AskedInference) -> bool:
    del asked
    outputs = answer.outputs.values()
    return sum([output.array.nbytes for output in outputs]) > _LARGE_OUTPUT or not all(
        output.dtype.item_size for output in outputs
    )


_UNARY: Final = InferFormat(_is_long, read_grpc_request, _is_long_answer, write_grpc_answer)
_STREAMED: Final = InferFormat(_is_long, read_grpc_request, _is_long_answer, partial(write_grpc_answer, stream=True))

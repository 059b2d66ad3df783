"""The Open Inference Protocol's answers to infer requests over REST: an output as JSON, or as bytes behind it."""

from __future__ import annotations

from typing import Final

import orjson

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.gather_call import Answer
from app.wire.json.write_values import values_text
from app.wire.little_endian_items import Memory, packed_bytes
from app.wire.v2_request_json import OUTPUT, Model
from app.wire.v2_request_tensors import Request

VERSION: Final = "1"
"""The only version of a model that is an operator."""


def check_writable(dtype: DType, operator: str = "gathernd", pointer: str | None = None) -> None:
    """Raises unsupported_dtype for complex types, which the protocol lacks and the route of `operator` takes."""
    if dtype.oip is None:
        raise GatherError(
            "unsupported_dtype",
            f"the inference protocol has no datatype for {dtype.name}; use POST /{operator}",
            pointer=pointer,
            hint=f"Send the request to POST /{operator}, whose JSON carries {dtype.name}.",
        )


def write_answer(
    answer: Answer, model: Model, request: Request, memory: Memory | None = None
) -> tuple[list[Buffer], int | None]:
    """The body of the answer in pieces, and the size of its JSON where binary items follow.

    `memory` is charged with what is made. Raises unsupported_dtype, and what charging raises.
    """
    output = answer.output
    check_writable(output.dtype)
    named = "" if request.identifier is None else f'"id":{orjson.dumps(request.identifier).decode()},'
    shape = ",".join(map(str, output.shape))
    replaced = "" if answer.replaced is None else f',"replaced":{answer.replaced}'
    head = (
        f'{{{named}"model_name":"{model.name}","model_version":"{answer.data_version or VERSION}",'
        f'"parameters":{{"dialect":"{answer.dialect}","device":"{answer.device}"{replaced}}},'
        f'"outputs":[{{"name":"{OUTPUT}","datatype":"{output.dtype.oip}","shape":[{shape}],'
    )
    if not request.binary:
        return [f'{head}"data":'.encode(), *values_text(output, memory), b"}]}"], None
    items = packed_bytes(output, memory)
    text = f'{head}"parameters":{{"binary_data_size":{len(items)}}}}}]}}'.encode()
    return [text, items], len(text)

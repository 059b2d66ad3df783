"""Writes a response as a safetensors body: the header, then the items of each tensor, which are not copied."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import orjson

from app.errors import GatherError
from app.formats.json.write_answer import answer_fields
from app.formats.safetensors.header import write_header, write_headers
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.gather_call import OUTPUT, Answer, Encoding
from app.tensors.lookup_call import LOOKUP


def check_writable(dtype: DType, pointer: str) -> None:
    """Raise unsupported_dtype for complex128 and string, which safetensors does not support."""
    if dtype.safetensors is None:
        raise GatherError(
            "unsupported_dtype",
            f"a safetensors body cannot carry {dtype.name}; request application/json, with output_encoding base64 if "
            "it is large",
            pointer=pointer,
            hint="Send 'Accept: application/json', which carries every type.",
        )


def write_answer(answer: Answer, encoding: Encoding = "values", memory: Memory = UNCOUNTED) -> list[Buffer]:
    """Return the body of `answer` in pieces. Copies nothing and charges no memory.

    The header's metadata contains the members of a lookup's JSON response other than its outputs. Raises
    unsupported_dtype.
    """
    outputs = answer.outputs
    for output in outputs.values():
        if output.dtype.safetensors is None:
            check_writable(output.dtype, "/accept" if answer.tables else "/data")
    items: list[Buffer] = [output.array.view(np.uint8).data for output in outputs.values()]
    if len(items) == 1 and OUTPUT in outputs and not answer.tables:
        output = outputs[OUTPUT]
        return [_remembered_header(OUTPUT, output.dtype, output.shape, len(items[0])), *items]
    described = {
        name: (output.dtype, output.shape, len(piece))
        for (name, output), piece in zip(outputs.items(), items, strict=True)
    }
    metadata = orjson.dumps({LOOKUP: answer_fields(answer).decode()}).decode() if answer.tables else ""
    return [write_headers(described, metadata), *items]


_remembered_header = lru_cache(256)(write_header)

"""Writes responses to infer requests of the Open Inference Protocol over REST: the outputs are in the JSON, or are
bytes after it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import orjson

from app.errors import GatherError
from app.formats.json.write_answer import answer_fields
from app.formats.oip.infer_document import AskedInference, Model
from app.json_text.write_values import is_long, values_text
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.by_key import FOUND
from app.tensors.dtypes import DType
from app.tensors.gather_call import OUTPUT, Answer
from app.tensors.little_endian_items import packed_bytes
from app.tensors.lookup_call import LOOKUP

VERSION: Final = "1"
"""The only version of an operator's model."""


def check_writable(dtype: DType, operator: str = "gathernd", pointer: str | None = None) -> None:
    """Raise unsupported_dtype for complex types, which the route of `operator` supports but the protocol does not."""
    if dtype.oip is None:
        raise GatherError(
            "unsupported_dtype",
            f"the inference protocol has no datatype for {dtype.name}; use POST /{operator}",
            pointer=pointer,
            hint=f"Send the request to POST /{operator}, whose JSON carries {dtype.name}.",
        )


def check_lookup_writable(answer: Answer) -> None:
    """Raise unsupported_dtype at the first feature whose tensor has a type that the protocol does not support."""
    for number, output in enumerate(answer.outputs.values()):
        check_writable(output.dtype, LOOKUP, f"/parameters/{LOOKUP}/features/{number}/tensor")


def is_long_answer(answer: Answer, asked: AskedInference) -> bool:
    """Return True if writing the response takes too long for the event loop.

    This applies to JSON text, and to strings, whose frames are copied; other items are not copied.
    """
    binary = asked.all_binary
    for output in answer.outputs.values():  # noqa: SIM110  (any() takes longer than all else here)
        if not (binary and output.dtype.item_size) and is_long(output):
            return True
    return False


def write_answer(
    answer: Answer, model: Model, asked: AskedInference, memory: Memory = UNCOUNTED
) -> tuple[list[Buffer], int | None]:
    """Return the body of the response in pieces, and the size of its JSON if binary items follow (else None).

    Charges `memory` for what it allocates. Raises unsupported_dtype, and any error of charging.
    """
    if model.is_lookup or FOUND in answer.outputs:
        return _write_outputs(answer, model, asked, memory)
    output = answer.output
    check_writable(output.dtype)
    named = b"{" if asked.identifier is None else b'{"id":%b,' % orjson.dumps(asked.identifier)
    items = packed_bytes(output, memory) if asked.binary else None
    head = named + _head(
        *(model.name, answer.data_version or VERSION, answer.dialect, answer.device, answer.replaced, answer.missing),
        *(output.dtype.oip, output.shape, None if items is None else len(items)),
    )
    if items is None:
        return [head, *values_text(output, memory), b"}]}"], None
    return [head, items], len(head)


@lru_cache(1 << 10)
def _head(
    model: str,
    version: int | str,
    dialect: str,
    device: str,
    replaced: int | None,
    missing: int | None,
    datatype: str,
    shape: tuple[int, ...],
    size: int | None,
) -> bytes:
    """Return the text before the items, without the id.

    If `size` bytes of items follow the JSON, this is the whole JSON.
    """
    counted = "" if replaced is None else f',"replaced":{replaced}'
    if missing is not None:
        counted += f',"missing":{missing}'
    head = (
        f'"model_name":"{model}","model_version":"{version}",'
        f'"parameters":{{"dialect":"{dialect}","device":"{device}"{counted}}},'
        f'"outputs":[{{"name":"{OUTPUT}","datatype":"{datatype}","shape":[{",".join(map(str, shape))}],'
    )
    head += '"data":' if size is None else f'"parameters":{{"binary_data_size":{size}}}}}]}}'
    return head.encode()


def _write_outputs(
    answer: Answer, model: Model, asked: AskedInference, memory: Memory
) -> tuple[list[Buffer], int | None]:
    """Return the pieces of a response with several outputs (a lookup, or a gather with `found`), and the size of its
    JSON, or None.
    """
    facts: dict[str, Any]
    if model.is_lookup:
        check_lookup_writable(answer)
        facts = {"device": "cpu", LOOKUP: answer_fields(answer).decode()}
    else:
        check_writable(answer.output.dtype)
        facts = {"dialect": answer.dialect, "device": answer.device}
    wanted = asked.outputs or dict.fromkeys(answer.outputs, asked.binary)
    head: dict[str, Any] = {} if asked.identifier is None else {"id": asked.identifier}
    head |= {"model_name": model.name, "model_version": str(answer.data_version or VERSION)}
    head["parameters"] = facts | answer.counts
    pieces: list[Buffer] = [orjson.dumps(head)[:-1], b',"outputs":[']
    blobs: list[Buffer] = []
    for number, (name, binary) in enumerate(wanted.items()):
        output = answer.outputs[name]
        described: dict[str, Any] = {"name": name, "datatype": output.dtype.oip, "shape": output.shape}
        if binary:
            blobs.append(packed_bytes(output, memory))
            described["parameters"] = {"binary_data_size": len(blobs[-1])}
        pieces.append((b"," if number else b"") + orjson.dumps(described)[: None if binary else -1])
        if not binary:
            pieces += [b',"data":', *values_text(output, memory), b"}"]
    pieces.append(b"]}")
    if not blobs:
        return pieces, None
    return [*pieces, *blobs], sum(map(len, pieces))

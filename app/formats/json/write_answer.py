"""Writes the `Answer` of an operator, a gradient or a lookup as JSON."""

from __future__ import annotations

from functools import lru_cache

import orjson

from app.json_text.write_values import is_long, items_text, tensor_text
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.by_key import FOUND
from app.tensors.gather_call import OUTPUT, Answer, Encoding
from app.tensors.lookup_call import found_name


def write_answer(answer: Answer, encoding: Encoding, memory: Memory = UNCOUNTED) -> list[Buffer]:
    """Return the body of `answer` in pieces. Charges `memory`; may raise any error of charging."""
    if answer.tables:
        return _lookup(answer, encoding, memory)
    if OUTPUT not in answer.outputs:
        return _gradient(answer, encoding, memory)
    output = answer.output
    head, tail = _text_around_items(
        output.dtype.name, output.shape, encoding, answer.dialect, answer.device, answer.data_etag, answer.data_version
    )
    if answer.replaced is not None:
        tail = b'%b,"replaced":%d}' % (tail[:-1], answer.replaced)
    pieces: list[Buffer] = [head, *items_text(output, encoding, memory), tail]
    if answer.missing is not None:
        pieces[-1:] = [b'%b,"missing":%d' % (tail[:-1], answer.missing), *_found_member(answer, encoding, memory), b"}"]
    return pieces


def _found_member(answer: Answer, encoding: Encoding, memory: Memory) -> list[Buffer]:
    """Return the `found` member if the request requires it, else nothing."""
    found = answer.outputs.get(FOUND)
    return [] if found is None else [b',"%b":' % FOUND.encode(), *tensor_text(found, encoding, memory)]


def is_long_answer(answer: Answer) -> bool:
    """Return True if writing the response takes too long for the event loop."""
    for output in answer.outputs.values():  # noqa: SIM110  (any() takes longer than all else here)
        if is_long(output):
            return True
    return False


@lru_cache(maxsize=1024)
def _text_around_items(
    dtype: str,
    shape: tuple[int, ...],
    encoding: str,
    dialect: str,
    device: str,
    etag: str | None,
    version: int | None,
) -> tuple[bytes, bytes]:
    """Return the text before and after the items.

    The result is cached, because responses with the same shape repeat it.
    """
    head = f'{{"output":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"{encoding}":'
    tail = f'}},"dialect":"{dialect}","device":"{device}"'
    if etag is not None:
        tail += f',"data_etag":{orjson.dumps(etag).decode()}'
    tail += "}" if version is None else f',"version":{version}}}'
    return head.encode(), tail.encode()


def _gradient(answer: Answer, encoding: Encoding, memory: Memory) -> list[Buffer]:
    pieces: list[Buffer] = []
    for name, tensor in answer.outputs.items():
        pieces.append(f'{"," if pieces else "{"}"{name}":'.encode())
        pieces += tensor_text(tensor, encoding, memory)
    pieces.append(f',"dialect":{orjson.dumps(answer.dialect).decode()},"device":"{answer.device}"}}'.encode())
    return pieces


def _lookup(answer: Answer, encoding: Encoding, memory: Memory) -> list[Buffer]:
    joined = OUTPUT in answer.outputs
    pieces: list[Buffer] = [b'{"output":' if joined else b'{"outputs":[']
    outputs = [output for name, output in answer.outputs.items() if not name.endswith(FOUND)]
    for number, output in enumerate(outputs):
        if number:
            pieces.append(b",")
        pieces += tensor_text(output, encoding, memory)
    pieces.append(b"," if joined else b"],")
    if len(outputs) == len(answer.outputs):
        return [*pieces, answer_fields(answer)[1:]]
    return [*pieces, *_features_with_found(answer, encoding, memory)]


def _features_with_found(answer: Answer, encoding: Encoding, memory: Memory) -> list[Buffer]:
    """Return the members of a response other than the outputs, including `found` for the features that request it."""
    pieces: list[Buffer] = []
    for number, feature in enumerate(_features(answer)):
        pieces += [b"," if number else b'"features":[', orjson.dumps(feature)[:-1]]
        found = answer.outputs.get(found_name(number))
        if found is not None:
            pieces += [b',"%b":' % FOUND.encode(), *tensor_text(found, encoding, memory)]
        pieces.append(b"}")
    counts = orjson.dumps(answer.counts)
    return [*pieces, b"],", counts[1:]]


def answer_fields(answer: Answer) -> bytes:
    """Return the members of a lookup's response other than the outputs, as a JSON object."""
    return orjson.dumps({"features": _features(answer), **answer.counts})


def _features(answer: Answer) -> list[dict[str, str | int]]:
    return [{"tensor": table.tensor, "data_etag": table.etag, "version": table.version} for table in answer.tables]

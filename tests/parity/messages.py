"""A request of no format, and the arrays of safetensors bodies, of JSON and of the inference protocol.

Written from `docs/reference/formats.md` and from nothing in `app`.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import httpx
import numpy as np

from tests.http.forms import COMPLEX, FLOAT8, octets
from tests.parity.items import NUMPY, Array, name_of

SIZE = "inference-header-content-length"
SHORT = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
DATATYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "bfloat16": "BF16",
    "float32": "FP32", "float64": "FP64", "string": "BYTES",
}  # fmt: skip
_OF_SHORT = {short: name for name, short in SHORT.items()}
_OF_LONG = {long: name for name, long in DATATYPES.items()}


@dataclass
class Request:
    """A request to an operator: arrays by name, and all else that it says."""

    path: str
    arrays: dict[str, Array]
    parameters: dict[str, Any]

    def shape(self, name: str) -> list[int]:
        return list(self.arrays[name].shape)


def indexes_nothing(request: Request) -> bool:
    """Whether there are indices for a tensor without items, of which none can be in bounds."""
    return 0 in request.shape("data") and request.arrays["indices"].size > 0


def values(array: Array) -> list[Any]:
    """The flat values as JSON has them."""
    name, flat = name_of(array), array.reshape(-1)
    if name in COMPLEX:
        parts = values(np.ascontiguousarray(flat).view("float32" if name == "complex64" else "float64"))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if name not in ("float16", "bfloat16", "float32", "float64", *FLOAT8):
        listed: list[Any] = flat.tolist()
        return listed
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        wide = flat.astype(np.float64)
    numbers = wide.tolist()
    if np.isfinite(wide).all():
        return list(numbers)
    words = {np.inf: "Infinity", -np.inf: "-Infinity"}
    return [words.get(number, "NaN" if isnan(number) else number) for number in numbers]


def raw(array: Array) -> bytes:
    """The items' bytes, strings each behind its length."""
    return octets("string", array.reshape(-1).tolist()) if array.dtype == object else array.tobytes()


def safetensors(
    parts: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors body of tensors, each by its type in the format, its shape and its bytes."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape, content) in parts.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in parts.values())


def saved(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    parts = {name: (SHORT[name_of(array)], array.shape, array.tobytes()) for name, array in arrays.items()}
    return safetensors(parts, metadata)


def loaded(body: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a safetensors body, and the texts beside them."""
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    texts = header.pop("__metadata__", {})
    found = {}
    for name, told in header.items():
        begin, end = (8 + size + place for place in told["data_offsets"])
        found[name] = np.frombuffer(body[begin:end], NUMPY[_OF_SHORT[told["dtype"]]]).reshape(told["shape"])
    return found, texts


def read_tensor(given: dict[str, Any]) -> Array:
    """A tensor of a JSON answer."""
    dtype = given["dtype"]
    if "base64" not in given:
        made = _array(dtype, given["values"])
    else:
        blob = b64decode(given["base64"])
        made = _array(dtype, unframed(blob)) if dtype == "string" else np.frombuffer(blob, NUMPY[dtype])
    return made.reshape(given["shape"])


def _array(dtype: str, listed: list[Any]) -> Array:
    if dtype == "string":
        made = np.empty(len(listed), object)
        made[:] = listed
        return made
    return np.frombuffer(octets(dtype, listed), NUMPY[dtype])


def inferred(answer: httpx.Response) -> tuple[dict[str, Array], dict[str, Any]]:
    """The outputs of the protocol's answer, and its JSON."""
    content, size = answer.content, answer.headers.get(SIZE)
    told: dict[str, Any] = json.loads(content if size is None else content[: int(size)])
    place = len(content) if size is None else int(size)
    found: dict[str, Array] = {}
    for output in told["outputs"]:
        dtype = _OF_LONG[output["datatype"]]
        if "data" in output:
            made = _array(dtype, output["data"])
        else:
            begin, place = place, place + output["parameters"]["binary_data_size"]
            blob = content[begin:place]
            made = _array(dtype, unframed(blob)) if dtype == "string" else np.frombuffer(blob, NUMPY[dtype])
        found[output["name"]] = made.reshape(output["shape"])
    assert place == len(content)
    return found, told


def unframed(content: bytes) -> list[str]:
    texts, place = [], 0
    while place < len(content):
        (size,) = struct.unpack_from("<I", content, place)
        texts.append(content[place + 4 : place + 4 + size].decode())
        place += 4 + size
    return texts

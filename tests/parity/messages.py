"""A request in each format that carries it, where that format's errors point to, and the arrays of an answer.

Written from `docs/reference/formats.md` and from nothing in `app`.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import httpx
import numpy as np

from tests.http.forms import COMPLEX, nested, octets
from tests.http.tensors import RAW
from tests.parity.items import NUMPY, Array, Rng, choose, name_of

JSON = ("flat", "nested", "base64")
OIP = ("protocol", "protocol, binary")
FORMATS = (*JSON, "safetensors", *OIP)
SAFETENSORS = "application/x-safetensors"
SIZE = "inference-header-content-length"
SHORT = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64",
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
    """A request to an operator: arrays by name, and all else that it says.

    `dtypes` and `values` are what is sent, in flat JSON, in place of an array's own type name or values.
    """

    path: str
    arrays: dict[str, Array]
    parameters: dict[str, Any]
    dtypes: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)
    model: bool = True

    def dtype(self, name: str) -> str:
        return self.dtypes.get(name, name_of(self.arrays[name]))

    def shape(self, name: str) -> list[int]:
        return list(self.arrays[name].shape)


@dataclass
class Sent:
    """A request as it is in one format."""

    request: Request
    format: str
    encoding: str = "values"

    def pointer(self, what: str, name: str, item: int = 0) -> str:
        """Where an error points to, for the `dtype`, `shape`, `values` or one `item` of an array, or a `parameter`."""
        if what == "parameter":
            return {"safetensors": f"/query/{name}"}.get(self.format, f"/{'parameters/' * (self.format in OIP)}{name}")
        if self.format == "safetensors":
            return f"/{name}"
        if self.format in OIP:
            start = f"/inputs/{list(self.request.arrays).index(name)}"
            if what in ("dtype", "shape"):
                return f"{start}/{'datatype' if what == 'dtype' else 'shape'}"
            if self.format == OIP[1]:
                return start
            return f"{start}/data/{item}" if what == "item" else f"{start}/data"
        if what in ("dtype", "shape"):
            return f"/{name}/{what}"
        if self.format == "base64":
            return f"/{name}/base64"
        if what == "values":
            return f"/{name}/values"
        if self.format == "flat":
            return f"/{name}/values/{item}"
        place = np.unravel_index(item, self.request.shape(name))
        return "/".join((f"/{name}/values", *map(str, place)))


@dataclass
class Found:
    """What a good answer has: arrays by name, and dialect, device and the count of what was replaced."""

    arrays: dict[str, Array]
    dialect: str | None
    device: str | None
    replaced: int | None


def formats_of(request: Request) -> list[str]:
    """The formats that can say this request."""
    if request.dtypes or request.values:
        return ["flat"]
    types = {name_of(array) for array in request.arrays.values()}
    found = ["flat", "base64", "safetensors"]
    if all(array.shape for array in request.arrays.values()):
        found.append("nested")
    if types & {"complex128", "string"}:
        found.remove("safetensors")
    if request.model and not types & set(COMPLEX):
        found.extend(OIP)
    return found


def send(client: httpx.Client, rng: Rng, request: Request) -> tuple[Sent, httpx.Response]:
    """Ask in one of the formats that carry the request, chosen at random."""
    sent = Sent(request, choose(rng, formats_of(request)), choose(rng, ("values", "base64")))
    return sent, send_as(client, sent)


def send_as(client: httpx.Client, sent: Sent) -> httpx.Response:
    """Ask in the format that is given."""
    request = sent.request
    if sent.format in JSON:
        return client.post(request.path, content=_json(sent))
    if sent.format == "safetensors":
        query = {name: _in_query(name, value) for name, value in request.parameters.items()}
        headers = {"content-type": SAFETENSORS}
        return client.post(request.path, params=query, content=saved(request.arrays), headers=headers)
    content, headers = _infer(sent)
    return client.post(f"/v2/models{request.path}/infer", content=content, headers=headers)


def values(array: Array) -> list[Any]:
    """The flat values as JSON has them."""
    name, flat = name_of(array), array.reshape(-1)
    if name in COMPLEX:
        parts = values(np.ascontiguousarray(flat).view("float32" if name == "complex64" else "float64"))
        return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if name not in ("float16", "bfloat16", "float32", "float64"):
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


@contextmanager
def resident(client: httpx.Client, tables: Mapping[str, Array]) -> Iterator[None]:
    """Arrays as resident tensors, for a while."""
    for name, table in tables.items():
        query = {"dtype": name_of(table), "shape": ",".join(map(str, table.shape))}
        headers = {"content-type": RAW}
        assert client.put(f"/tensors/{name}", params=query, content=raw(table), headers=headers).is_success
    yield
    for name in tables:
        client.delete(f"/tensors/{name}")


def _json(sent: Sent) -> bytes:
    request = sent.request
    body: dict[str, Any] = dict(request.parameters) | {"output_encoding": sent.encoding}
    for name, array in request.arrays.items():
        given: dict[str, Any] = {"dtype": request.dtype(name), "shape": request.shape(name)}
        if sent.format == "base64":
            body[name] = given | {"base64": b64encode(raw(array)).decode()}
        else:
            given["values"] = request.values[name] if name in request.values else values(array)
            body[name] = nested(given) if sent.format == "nested" else given
    return json.dumps(body).encode()


def _in_query(name: str, value: Any) -> str:
    if name == "fill_value":
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def saved(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        told = {"dtype": SHORT[name_of(array)], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        header[name], end = told, end + array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())


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


def _infer(sent: Sent) -> tuple[bytes, dict[str, str]]:
    request = sent.request
    parameters = {
        name: json.dumps(value) if name == "fill_value" else value for name, value in request.parameters.items()
    }
    return infer_body(request.arrays, parameters, binary=sent.format == OIP[1])


def infer_body(
    arrays: Mapping[str, Array], parameters: dict[str, Any], *, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Body and header fields of an infer request."""
    inputs, blobs = [], []
    for name, array in arrays.items():
        told: dict[str, Any] = {"name": name, "datatype": DATATYPES[name_of(array)], "shape": list(array.shape)}
        if binary:
            blobs.append(raw(array))
            told["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            told["data"] = values(array)
        inputs.append(told)
    text = json.dumps({"inputs": inputs, "parameters": parameters | {"binary_data_output": binary}}).encode()
    return b"".join((text, *blobs)), {SIZE: str(len(text))} if binary else {}


def read(sent: Sent, answer: httpx.Response) -> Found:
    """The arrays of a good answer in the format of its request."""
    assert answer.status_code == 200, answer.text
    if sent.format == "safetensors":
        headers = answer.headers
        replaced = headers.get("x-gathernd-replaced")
        return Found(
            loaded(answer.content)[0],
            headers["x-gathernd-dialect"],
            headers["x-gathernd-device"],
            None if replaced is None else int(replaced),
        )
    if sent.format in OIP:
        arrays, told = inferred(answer)
        more = told.get("parameters", {})
        return Found(arrays, more.get("dialect"), more.get("device"), more.get("replaced"))
    body = answer.json()
    arrays = {name: read_tensor(given) for name, given in body.items() if isinstance(given, dict) and "dtype" in given}
    assert all(("base64" in body[name]) == (sent.encoding == "base64") for name in arrays), body
    return Found(arrays, body["dialect"], body["device"], body.get("replaced"))


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

"""Bodies of the inference protocol, made and read once more for the tests and from nothing in `app.json_text`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import pack, unpack
from typing import Any

import httpx
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.errors import CATALOGUE
from tests.http.server import check_hint

SIZE = "Inference-Header-Content-Length"
NUMPY: dict[str, Any] = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8,
    "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "FP16": np.float16, "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip
Array = NDArray[Any]


class Part:
    """An input: what its JSON says, and the bytes behind the JSON, None for none."""

    def __init__(self, described: dict[str, Any], raw: bytes | None) -> None:
        self.described = described
        self.raw = raw


def octets(array: Array) -> bytes:
    """The items in binary; strings each behind their length."""
    if array.dtype != np.object_:
        return array.tobytes()
    texts = [text if isinstance(text, bytes) else text.encode() for text in array.reshape(-1)]
    return b"".join(pack("<I", len(text)) + text for text in texts)


def listed(array: Array, flat: bool = True) -> list[Any]:
    """The items as JSON gives them."""
    if array.dtype in (ml_dtypes.bfloat16, np.float16):
        array = array.astype(np.float32)
    made: list[Any] = (array.reshape(-1) if flat else array).tolist()
    return made


def part(name: str, array: Array, datatype: str, *, binary: bool = False, flat: bool = True) -> Part:
    described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    if not binary:
        return Part({**described, "data": listed(array, flat)}, None)
    raw = octets(array)
    return Part({**described, "parameters": {"binary_data_size": len(raw)}}, raw)


def request(parts: Sequence[Part], **members: Any) -> tuple[bytes, dict[str, str]]:
    """Body and header fields of an infer request; `members` are further ones beside `inputs`."""
    head = json.dumps({"inputs": [one.described for one in parts], **members}).encode()
    raws = [one.raw for one in parts if one.raw is not None]
    if not raws:
        return head, {}
    return b"".join((head, *raws)), {SIZE: str(len(head))}


def example(**members: Any) -> dict[str, Any]:
    """Example 1 of the specification as the JSON of a request."""
    return {
        "inputs": [
            {"name": "data", "datatype": "INT32", "shape": [2, 2], "data": [0, 1, 2, 3]},
            {"name": "indices", "datatype": "INT64", "shape": [2, 2], "data": [0, 0, 1, 1]},
        ],
        **members,
    }


def output(answer: httpx.Response) -> tuple[dict[str, Any], Array]:
    """The JSON of a good answer, and its output as an array of its shape."""
    assert answer.status_code == 200, answer.text
    size = answer.headers.get(SIZE)
    content = answer.content
    head = content if size is None else content[: int(size)]
    body: dict[str, Any] = json.loads(head)
    assert answer.headers["content-type"] == ("application/json" if size is None else "application/octet-stream")
    (described,) = body["outputs"]
    assert described["name"] == "output"
    kind = NUMPY[described["datatype"]]
    if "data" in described:
        assert size is None
        assert "parameters" not in described
        items = described["data"]
        if described["datatype"] in ("BF16", "FP16"):
            made: Array = np.array(items, np.float32).astype(kind)
        else:
            made = np.array(items, kind)
        return body, made.reshape(described["shape"])
    raw = content[int(size) :]
    assert len(raw) == described["parameters"]["binary_data_size"]
    made = _strings(raw) if described["datatype"] == "BYTES" else np.frombuffer(raw, kind)
    return body, made.reshape(described["shape"])


def _strings(raw: bytes) -> Array:
    texts, place = [], 0
    while place < len(raw):
        (size,) = unpack("<I", raw[place : place + 4])
        assert place + 4 + size <= len(raw)
        texts.append(raw[place + 4 : place + 4 + size].decode())
        place += 4 + size
    made = np.empty(len(texts), object)
    made[:] = texts
    return made


def same(left: Array, right: Array) -> bool:
    """Whether two arrays have one type, one shape and the same bytes (not only equal values: zeros have signs)."""
    return left.dtype == right.dtype and left.shape == right.shape and octets(left) == octets(right)


def check_answer(response: httpx.Response) -> None:
    """What holds for every answer under /v2: an error has the protocol's `error` beside the members of a problem."""
    response.read()
    assert response.headers["x-request-id"]
    assert response.headers["server-timing"]
    if response.status_code < 400 or response.request.method == "HEAD":
        return
    assert response.headers["content-type"] == "application/json"
    assert "content-encoding" not in response.headers
    body = response.json()
    code = body["code"]
    assert response.status_code == body["status"] == CATALOGUE[code].status, body
    assert body["error"] == body["detail"]
    assert body["error"]
    assert body["title"] == CATALOGUE[code].title
    check_hint(body["hint"])
    assert body["type"] == f"/errors/{code}"
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text


def refused(answer: httpx.Response, code: str, pointer: str | None = None) -> dict[str, Any]:
    """The body of an answer, which must be the error `code`, with its first place at `pointer`."""
    body: dict[str, Any] = answer.json()
    assert body.get("code") == code, body
    assert [place["pointer"] for place in body.get("errors", [])[:1]] == ([] if pointer is None else [pointer]), body
    return body

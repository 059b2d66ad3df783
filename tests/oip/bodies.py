"""Bodies of the inference protocol, made and read once more for the tests and from nothing in `app.json_text`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import pack
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from app.errors import CATALOGUE
from tests.http.server import check_hint
from tests.parity import items
from tests.parity.messages import DATATYPES, inferred, values

SIZE = "Inference-Header-Content-Length"
NUMPY: dict[str, np.dtype[Any]] = {long: items.NUMPY[name] for name, long in DATATYPES.items()}
Array = NDArray[Any]
Part = tuple[dict[str, Any], bytes | None]
"""An input: what its JSON says, and the bytes behind the JSON, None for none."""


def octets(array: Array) -> bytes:
    """The items in binary; strings each behind their length."""
    if array.dtype != np.object_:
        return array.tobytes()
    texts = [text if isinstance(text, bytes) else text.encode() for text in array.reshape(-1)]
    return b"".join(pack("<I", len(text)) + text for text in texts)


def part(name: str, array: Array, datatype: str, *, binary: bool = False) -> Part:
    described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    if not binary:
        return {**described, "data": values(array)}, None
    raw = octets(array)
    return {**described, "parameters": {"binary_data_size": len(raw)}}, raw


def request(parts: Sequence[Part], **members: Any) -> tuple[bytes, dict[str, str]]:
    """Body and header fields of an infer request; `members` are further ones beside `inputs`."""
    head = json.dumps({"inputs": [described for described, _ in parts], **members}).encode()
    raws = [raw for _, raw in parts if raw is not None]
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
    binary = SIZE in answer.headers
    assert answer.headers["content-type"] == ("application/octet-stream" if binary else "application/json")
    arrays, body = inferred(answer)
    assert list(arrays) == ["output"]
    return body, arrays["output"]


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

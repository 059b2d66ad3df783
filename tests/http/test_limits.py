"""Every limit is a setting; a request beyond it is refused with its name and value before anything is done."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import httpx
import pytest

from tests.http.conftest import Start
from tests.http.forms import int64, tensor
from tests.http.raw import Wire, request
from tests.http.server import Server

KIB = 1 << 10
RAW = {"content-type": "application/octet-stream"}
BINARY = {"content-type": "application/x-safetensors"}
GZIP = {"content-encoding": "gzip"}


@dataclass(frozen=True)
class Limit:
    """A limit's value for the server here, its name in errors, and requests that exceed it, with the code they get."""

    value: int
    name: str
    code: str
    beyond: tuple[Callable[[httpx.Client], httpx.Response], ...]


def gather(data: Any, indices: Any | None = None) -> Callable[[httpx.Client], httpx.Response]:
    body = {"data": data, "indices": int64([1, 1], [0]) if indices is None else indices}
    return lambda client: client.post("/gathernd", json=body)


def post(content: bytes, headers: dict[str, str] | None = None) -> Callable[[httpx.Client], httpx.Response]:
    return lambda client: client.post("/gathernd", content=content, headers=headers)


def put(name: str, size: int, shape: str | None = None) -> Callable[[httpx.Client], httpx.Response]:
    path = f"/tensors/{name}?dtype=int8&shape={shape or size}"
    return lambda client: client.put(path, content=bytes(size), headers=RAW)


def chunks(size: int) -> Callable[[httpx.Client], httpx.Response]:
    return lambda client: client.post("/gathernd", content=iter([b" " * KIB] * (size // KIB + 1)), headers=BINARY)


def scatter(path: str, size: int, **more: Any) -> Callable[[httpx.Client], httpx.Response]:
    """A scatter of one item into so many."""
    indices = int64([1, 1] if path == "/scatternd" else [1], [0])
    body = {"data": tensor("int8", [size], [0] * size), "indices": indices, "updates": tensor("int8", [1], [1])} | more
    return lambda client: client.post(path, json=body)


def gradient(path: str, shape: list[int], *, sparse: int = 0) -> Callable[[httpx.Client], httpx.Response]:
    """The gradient of one slice, or of so many of a sparse one."""
    count = sparse or 1
    indices = int64([count, 1] if "nd" in path else [count], list(range(count)))
    grad_output = tensor("float32", [count, *shape[1:]], [1] * (count * prod(shape[1:])))
    body: dict[str, Any] = {"indices": indices, "grad_output": grad_output, "data_shape": shape}
    return lambda client: client.post(path, json=body | ({"sparse": True} if sparse else {}))


def lookup(features: int) -> Callable[[httpx.Client], httpx.Response]:
    body = {"features": [{"tensor": "first", "indices": int64([1], [0])}] * features}
    return lambda client: client.post("/lookup", json=body)


def scatter_twice(client: httpx.Client) -> httpx.Response:
    """The second answer of two scatters with a key each."""
    body = {"indices": int64([1, 1], [0]), "updates": tensor("int8", [1], [1])}
    first, second = (
        client.post("/tensors/second/scatter", json=body, headers={"idempotency-key": key}) for key in ("one", "two")
    )
    assert first.status_code == 200, first.text
    return second


SCATTERS = ("/scatternd", "/scatter_elements")
GRADIENTS = ("/gathernd/backward", "/gather/backward")
LIMITS = {
    "max_json_bytes": Limit(
        96 * KIB,
        "body_bytes",
        "payload_too_large",
        (post(b" " * (96 * KIB + 1)), post(gzip.compress(b" " * (96 * KIB + 1)), GZIP)),
    ),
    "max_body_bytes": Limit(
        128 * KIB,
        "body_bytes",
        "payload_too_large",
        (
            post(b" " * (128 * KIB + 1), BINARY),
            post(gzip.compress(b" " * (128 * KIB + 1)), {**GZIP, **BINARY}),
            chunks(128 * KIB),
        ),
    ),
    "max_upload_bytes": Limit(
        32 * KIB,
        "upload_bytes",
        "payload_too_large",
        (
            put("a", 32 * KIB + 1),
            lambda client: client.put("/tensors/a?dtype=int8&shape=32769", content=iter([bytes(32769)]), headers=RAW),
            lambda client: client.put(
                "/tensors/a?dtype=int8&shape=32769", content=gzip.compress(bytes(32769)), headers={**RAW, **GZIP}
            ),
        ),
    ),
    "max_output_bytes": Limit(
        4 * KIB,
        "output_bytes",
        "output_too_large",
        (
            gather(tensor("int8", [1, 100], [0] * 100), int64([41, 1], [0] * 41)),
            *(scatter(path, 4 * KIB + 1) for path in SCATTERS),
            *(gradient(path, [KIB + 1]) for path in GRADIENTS),
            *(gradient(path, [1600, 5], sparse=150) for path in GRADIENTS),
        ),
    ),
    "max_rank": Limit(
        4,
        "rank",
        "limit_exceeded",
        (
            gather(tensor("int8", [1] * 5, [0])),
            put("a", 1, "1,1,1,1,1"),
            *(gradient(path, [1] * 5) for path in GRADIENTS),
        ),
    ),
    "max_dimension": Limit(
        5000,
        "dimension",
        "limit_exceeded",
        (
            gather(tensor("int8", [5001], [0] * 5001)),
            put("a", 5001),
            *(gradient(path, [5001, 1], sparse=1) for path in GRADIENTS),
        ),
    ),
    "max_elements": Limit(
        8000,
        "elements",
        "limit_exceeded",
        (
            gather(tensor("int8", [2, 4001], [0] * 8002)),
            put("a", 8002, "2,4001"),
            *(gradient(path, [4001, 2], sparse=1) for path in GRADIENTS),
        ),
    ),
    "max_string_bytes": Limit(
        10,
        "string_bytes",
        "limit_exceeded",
        (
            gather(tensor("string", [1], ["x" * 11])),
            *(
                scatter(path, 1, data=tensor("string", [1], [""]), updates=tensor("string", [1], ["x" * 11]))
                for path in SCATTERS
            ),
        ),
    ),
    "max_features": Limit(2, "features", "limit_exceeded", (lookup(3),)),
    "max_header_bytes": Limit(
        4 * KIB,
        "header_bytes",
        "header_too_large",
        (lambda client: client.get("/livez", headers={"x-long": "x" * 5000}), post(b"", {"x-long": "x" * 4097})),
    ),
    "max_header_fields": Limit(
        20,
        "header_fields",
        "header_too_large",
        (lambda client: client.get("/livez", headers={f"x-{number}": "" for number in range(21)}),),
    ),
    "max_store_bytes": Limit(16_000, "store_bytes", "insufficient_storage", (put("second", 4500, "2,2250"),)),
    "max_tensors": Limit(2, "store_tensors", "insufficient_storage", (put("c", 1),)),
    "max_idempotency_keys": Limit(1, "idempotency_keys", "insufficient_storage", (scatter_twice,)),
}


@pytest.fixture(scope="module")
def strict(start: Start) -> Iterator[Server]:
    """A server with every limit of the table, whose store has as many tensors as may be."""
    flags = [text for name, limit in LIMITS.items() for text in (f"--{name.replace('_', '-')}", str(limit.value))]
    with start(*flags) as server:
        for name, size in (("first", 4500), ("second", 1)):
            path = f"/tensors/{name}?dtype=int8&shape={size}"
            assert server.shared_client().put(path, content=bytes(size), headers=RAW).status_code == 201
        yield server


@pytest.mark.parametrize("name", LIMITS)
def test_what_exceeds_a_limit_is_refused_by_its_name(strict: Server, name: str) -> None:
    limit = LIMITS[name]
    for beyond in limit.beyond:
        answer = beyond(strict.shared_client())
        body = answer.json()
        assert (body["code"], body["limit"], body["maximum"]) == (limit.code, limit.name, limit.value), answer.text


@pytest.mark.parametrize("kind", ["JSON", "binary", "upload"])
def test_a_declared_length_beyond_the_limit_is_refused_before_the_body_is_sent(strict: Server, kind: str) -> None:
    line = "PUT /tensors/a?dtype=int8&shape=1 HTTP/1.1" if kind == "upload" else "POST /gathernd HTTP/1.1"
    field = "application/x-safetensors" if kind == "binary" else "application/octet-stream"
    fields = ["Content-Length: 999999999"] + ([] if kind == "JSON" else [f"Content-Type: {field}"])
    with Wire(strict) as wire:
        wire.send(request(b"", *fields, line=line, length=False))
        answer = wire.read()
    wanted = LIMITS[{"JSON": "max_json_bytes", "binary": "max_body_bytes", "upload": "max_upload_bytes"}[kind]]
    assert (answer.status, answer.json()["limit"], answer.json()["maximum"]) == (413, wanted.name, wanted.value)

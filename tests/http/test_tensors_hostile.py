"""Hostile names and hostile files: a clear error or a correct result, never a crash or a file outside the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.raw import Wire, request
from tests.http.server import Server
from tests.http.tensors import NPY, SAFETENSORS, error, look_up, npy, put_raw, save

BODY = npy(np.arange(3))

# As they stand in the request line: a client would tidy some of them.
NAMES = [
    "..", ".", "%2e%2e", "%2E.", "..%2f..%2fetc%2fpasswd", "a%2Fb", "%2F", "a%2Fcontent", "a%2fscatter", "%00", "a%00b",
    "%ff", "%C0%AF", "a" * 129, "a" * 300, "a" * 4000, "-a", ".a", "_a", "a%20b", "a+b", "%D0%B0", "%EF%BD%81",
    "a%CC%81", "a%E2%80%8B", "%F0%9F%92%A9", "%ED%A0%80", "a%0A", "%0d%0aX:y", "~a", "a;b", "a:b", "a*", "%25",
    "gathernd", "gather", "stats", "%67athernd", "",
]  # fmt: skip


def store_files(server: Server) -> set[Path]:
    return {path for path in server.log.parent.rglob("*") if path.is_file()}


@for_each("method", ["PUT", "GET", "DELETE", "HEAD"])
@for_each("name", NAMES)
def test_a_hostile_name_is_refused(server: Server, name: str, method: str) -> None:
    before = store_files(server)
    with Wire(server) as wire:
        wire.send(request(BODY if method == "PUT" else b"", line=f"{method} /tensors/{name} HTTP/1.1"))
        answer = wire.read(head=method == "HEAD")
    assert answer.status == 422, answer.body
    if method != "HEAD":
        found = answer.json()
        assert found["code"] == "invalid_field"
        assert found["errors"][0]["pointer"] == "/name"
    assert store_files(server) == before


def header(text: str, version: int = 1, length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes((version, 0)) + size.to_bytes(2 if version == 1 else 4, "little") + text.encode()


def described(descr: str, shape: str, order: str = "False") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}")


def tensors(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


F4 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOLE = tensors(a=F4 | {"data_offsets": [4, 12]}) + bytes(12)
# The headers themselves are tried in tests/wire.
FILES: dict[str, tuple[str, bytes, int, str]] = {
    "npy of Python objects": (NPY, npy(np.array([{"a": 1}], object)), 422, "unsupported_dtype"),
    "npy whose product overflows": (NPY, described("'<f4'", f"({2**33}, {2**33}, {2**33})"), 422, "limit_exceeded"),
    "npy cut short": (NPY, BODY[:-1], 422, "element_count_mismatch"),
    "npy with trailing bytes": (NPY, BODY + b"\0", 422, "element_count_mismatch"),
    "npy in Fortran order, cut short": (NPY, npy(np.ones((3, 4), order="F"))[:-8], 422, "element_count_mismatch"),
    "npy with a bool of 2": (NPY, described("'|b1'", "(2,)") + b"\1\2", 422, "value_not_representable"),
    "safetensors of no tensor": (SAFETENSORS, tensors(), 422, "invalid_field"),
    "safetensors of two tensors": (SAFETENSORS, save(a=np.ones(2), b=np.ones(2)), 422, "invalid_field"),
    "safetensors with a hole": (SAFETENSORS, HOLE, 400, "malformed_request"),
    "safetensors cut short": (SAFETENSORS, save(a=np.ones(2))[:-1], 422, "element_count_mismatch"),
    "safetensors with trailing bytes": (SAFETENSORS, save(a=np.ones(2)) + b"\0", 422, "element_count_mismatch"),
    "neither": ("", b"GIF89a" + bytes(20), 415, "unsupported_media_type"),
    "JSON": ("application/json", b"{}", 415, "unsupported_media_type"),
}  # fmt: skip


@for_each("chunked", [False, True])
@for_each("case", FILES)
def test_a_hostile_file_is_refused_and_leaves_nothing(server: Server, case: str, chunked: bool) -> None:
    kind, body, status, code = FILES[case]
    before = store_files(server)
    client = server.shared_client()
    content: Any = (body[start : start + 7] for start in range(0, len(body[:4000]), 7)) if chunked else body
    if chunked and len(body) > 4000:
        content = iter([body])
    answer = client.put("/tensors/hostile", content=content, headers={"content-type": kind} if kind else {})
    error(answer, status, code)
    assert store_files(server) == before
    error(client.get("/tensors/hostile"), 404, "tensor_not_found")


def test_a_client_that_goes_leaves_nothing(server: Server) -> None:
    before = store_files(server)
    for sent in (b"", BODY[:9], BODY[:-1]):
        with Wire(server) as wire:
            wire.send(request(BODY, line="PUT /tensors/gone HTTP/1.1")[: -len(BODY)] + sent)
    client = server.shared_client()
    put_raw(client, "here", np.arange(3))
    until(lambda: len(store_files(server) - before) <= 1, 8)  # less than the timeout of bodies
    error(client.get("/tensors/gone"), 404, "tensor_not_found")
    client.delete("/tensors/here")
    assert {path for path in store_files(server) if "incoming" in path.parent.parts} == set()


def test_a_bit_that_flips_on_disk_is_found_after_a_restart(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    flags = ("--kernel", "numpy", "--store-dir", str(folder))
    with start(*flags) as server, server.client() as client:
        put_raw(client, "flipped", np.arange(100_000))
        (path,) = (folder / "tensors").iterdir()
        put_raw(client, "whole", np.arange(100))
    with path.open("r+b") as file:
        file.seek(4096 + 70_000)
        file.write(b"\xff")
    with start(*flags) as server, server.client() as client:
        until(lambda: client.get("/tensors/flipped").status_code == 500)
        error(look_up(client, "flipped", [0]), 500, "tensor_damaged")
        assert look_up(client, "whole", [7]).json()["output"]["values"] == [7]
        listed = {found["name"]: found.get("damaged", False) for found in client.get("/tensors").json()["tensors"]}
        assert listed == {"flipped": True, "whole": False}
        assert client.delete("/tensors/flipped").status_code == 204

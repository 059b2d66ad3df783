"""Resident tensors over HTTP: upload, metadata, content, conditions, lists, lookups."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.tensors import (
    FORM,
    NPY,
    RAW,
    SAFETENSORS,
    error,
    look_up,
    npy,
    npy_of_python_2,
    put_raw,
    put_strings,
    save,
)
from tests.safetensors_files import SOUND

TABLE = np.arange(24, dtype=np.float32).reshape(6, 4)


def uploads(array: Any) -> dict[str, tuple[bytes, dict[str, str], dict[str, str]]]:
    """The same tensor in every form: body, query, header fields."""
    query = {"dtype": array.dtype.name, "shape": ",".join(map(str, array.shape))}
    return {
        "raw": (array.tobytes(), query, {"content-type": RAW}),
        "npy": (npy(array), {}, {"content-type": NPY}),
        "npy by magic": (npy(array), {}, {}),
        "npy of Python 2": (npy_of_python_2(array), {}, {}),
        "npy as a browser says": (npy(array), {}, {"content-type": RAW}),
        "npy as curl says": (npy(array), {}, {"content-type": FORM}),
        "npy with a parameter": (npy(array), {}, {"content-type": NPY + "; version=1"}),
        "fortran": (npy(np.asfortranarray(array)), {}, {"content-type": NPY}),
        "big endian": (npy(array.astype(array.dtype.newbyteorder(">"))), {}, {"content-type": NPY}),
        "both": (npy(np.asfortranarray(array.astype(array.dtype.newbyteorder(">")))), {}, {}),
        "safetensors": (save(anything=array), {}, {"content-type": SAFETENSORS}),
        "safetensors by magic": (save(x=array), {}, {}),
        "gzip": (gzip.compress(npy(array)), {}, {"content-encoding": "gzip"}),
        "gzip of two members": (
            gzip.compress(npy(array)[:99]) + gzip.compress(b"") + gzip.compress(npy(array)[99:]),
            {},
            {"content-encoding": "gzip"},
        ),
        "deflate": (zlib.compress(array.tobytes()), query, {"content-type": RAW, "content-encoding": "deflate"}),
    }


@pytest.mark.parametrize("kind", ["metadata null", "unknown list of objects", "unknown first"])
def test_a_safetensors_file_of_another_writer_is_uploaded(client: httpx.Client, name: str, kind: str) -> None:
    answer = client.put(f"/tensors/{name}", content=SOUND[kind])
    assert answer.status_code == 201, answer.text
    assert answer.json()["shape"] == [2]


@pytest.mark.parametrize("form", uploads(TABLE))
def test_every_form_gives_the_same_tensor_and_hash_and_an_etag_of_its_own(
    client: httpx.Client, name: str, form: str
) -> None:
    reference = put_raw(client, name, TABLE).json()
    client.delete(f"/tensors/{name}")
    body, query, headers = uploads(TABLE)[form]
    answer = client.put(f"/tensors/{name}", params=query, content=body, headers=headers)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert found["sha256"] == reference["sha256"]
    assert re.fullmatch("[0-9a-f]{64}", found["sha256"])
    assert found["etag"] == answer.headers["etag"] != reference["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}-0"', found["etag"])
    assert (found["name"], found["dtype"], found["shape"], found["bytes"]) == (name, "float32", [6, 4], 96)
    assert client.get(f"/tensors/{name}/content").content == TABLE.tobytes()
    again = client.put(f"/tensors/{name}", params=query, content=body, headers=headers)
    assert again.status_code == 200
    assert again.json()["sha256"] == found["sha256"]
    assert again.json()["etag"] not in (found["etag"], reference["etag"])


def test_metadata_tells_when_and_head_tells_the_same(client: httpx.Client, name: str) -> None:
    put_raw(client, name, TABLE)
    first = client.get(f"/tensors/{name}")
    put_raw(client, name, TABLE[:2])
    second = client.get(f"/tensors/{name}")
    head = client.head(f"/tensors/{name}")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["etag"] == second.headers["etag"] == second.json()["etag"]
    times = [datetime.fromisoformat(found.json()[key]) for found in (first, second) for key in ("created", "modified")]
    assert times[0] == times[1] == times[2] < times[3]
    assert times[0].tzinfo is not None


def test_delete_removes_and_then_there_is_nothing(client: httpx.Client, name: str) -> None:
    put_raw(client, name, TABLE)
    answer = client.delete(f"/tensors/{name}")
    assert (answer.status_code, answer.content) == (204, b"")
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        error(client.request(method, f"/tensors/{name}{path}"), 404, "tensor_not_found", "/name")
    assert client.head(f"/tensors/{name}").status_code == 404
    error(look_up(client, name, [0]), 404, "tensor_not_found", "/data/tensor")


def test_lookups_read_the_tensor_and_say_which(client: httpx.Client, name: str) -> None:
    etag = put_raw(client, name, TABLE).json()["etag"]
    answer = look_up(client, name, [5, -6, 2])
    assert answer.json()["output"] == {"dtype": "float32", "shape": [3, 4], "values": TABLE[[5, 0, 2]].ravel().tolist()}
    assert answer.json()["data_etag"] == etag
    body = {"data": {"tensor": name}, "indices": int64([2], [3, 0]), "axis": 1}
    gathered = client.post("/gather", json=body).json()
    assert gathered["output"]["values"] == TABLE[:, [3, 0]].ravel().tolist()
    assert gathered["data_etag"] == etag
    binary = client.post(
        "/gathernd",
        params={"tensor": name},
        content=save(indices=np.array([[1, 2]])),
        headers={"content-type": SAFETENSORS},
    )
    assert binary.headers["x-gathernd-data-etag"] == etag
    assert safetensors.numpy.load(binary.content)["output"].tolist() == [6.0]
    found = error(look_up(client, name, [0, 6]), 422, "index_out_of_bounds", "/indices/values/1")
    assert found["errors"][0]["allowed"] == [-6, 5]


def test_strings_go_in_and_out_whole(client: httpx.Client, name: str) -> None:
    texts = ["", "naïve", "x" * 1000, "𝄞"]
    assert put_strings(client, name, texts).status_code == 201
    assert look_up(client, name, [3, 1, 0]).json()["output"]["values"] == ["𝄞", "naïve", ""]
    answer = client.get(f"/tensors/{name}/content", params={"rows": "1:3"})
    assert answer.headers["x-gathernd-dtype"] == "string"
    assert answer.headers["x-gathernd-shape"] == "2"
    assert answer.content.endswith(b"x" * 1000)
    assert len(answer.content) == 4 + 6 + 4 + 1000
    body = {"data": {"tensor": name}, "indices": int64([1, 1], [1]), "output_encoding": "base64"}
    encoded = client.post("/gathernd", json=body).json()["output"]["base64"]
    assert base64.b64decode(encoded) == b"\x06\0\0\0" + "naïve".encode()
    found = error(client.get(f"/tensors/{name}/content", headers={"accept": NPY}), 422, "unsupported_dtype", "/accept")
    assert "octet-stream" in found["detail"]


@pytest.mark.parametrize(
    "array",
    [
        np.array(7, np.int16),
        np.zeros((0, 3), np.uint8),
        np.array([1, 2], ml_dtypes.bfloat16),
        np.ones(3, np.complex128),
    ],
)
def test_scalars_empty_tensors_and_rare_types(client: httpx.Client, name: str, array: Any) -> None:
    assert put_raw(client, name, array).status_code == 201
    answer = client.get(f"/tensors/{name}/content")
    assert answer.content == array.tobytes()
    assert answer.headers["x-gathernd-shape"] == ",".join(map(str, array.shape))
    assert answer.headers["x-gathernd-dtype"] == array.dtype.name
    if array.ndim == 0:
        error(look_up(client, name, [0]), 422, "rank_too_small")
        error(client.get(f"/tensors/{name}/content?rows=0:0"), 416, "range_not_satisfiable", "/query/rows")


def test_content_comes_as_accept_asks(client: httpx.Client, name: str) -> None:
    put_raw(client, name, TABLE)
    for accept in (NPY, f"{RAW};q=0.5, {NPY}", f"{NPY}, */*;q=0.1"):
        answer = client.get(f"/tensors/{name}/content", headers={"accept": accept})
        assert answer.headers["content-type"] == NPY
        assert np.load(io.BytesIO(answer.content)).tolist() == TABLE.tolist()
    answer = client.get(f"/tensors/{name}/content?rows=1:3", headers={"accept": SAFETENSORS})
    assert safetensors.numpy.load(answer.content)["tensor"].tolist() == TABLE[1:3].tolist()
    answer = client.get(f"/tensors/{name}/content", headers={"accept": f"{RAW};q=0, */*"})
    assert answer.headers["content-type"] == NPY
    for accept in ("*/*", "text/html", f"{NPY};q=0", "", ";;,q"):
        assert client.get(f"/tensors/{name}/content", headers={"accept": accept}).headers["content-type"] == RAW


@pytest.mark.parametrize("accept", [f"{NPY}, {RAW};q=0.5", f"{NPY}, */*;q=0.1", f"{SAFETENSORS}, {NPY}, {RAW};q=0.2"])
def test_content_comes_in_the_best_of_the_formats_that_carry_it(client: httpx.Client, name: str, accept: str) -> None:
    assert put_strings(client, name, ["a", "bc"]).status_code == 201
    answer = client.get(f"/tensors/{name}/content", headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, RAW)
    error(client.get(f"/tensors/{name}/content", headers={"accept": f"{NPY}, */*;q=0"}), 422, "unsupported_dtype")


@pytest.mark.parametrize("items", [4, 3 << 20])
def test_a_cache_is_told_that_accept_chooses_the_format(client: httpx.Client, name: str, items: int) -> None:
    put_raw(client, name, np.zeros(items, np.float32))
    path = f"/tensors/{name}/content"
    etag = client.head(path).headers["etag"]
    for method, fields, status in (("GET", {}, 200), ("HEAD", {}, 200), ("GET", {"if-none-match": etag}, 304)):
        answer = client.request(method, path, headers=fields)
        assert (answer.status_code, answer.headers.get("vary")) == (status, "Accept")


def test_content_of_many_pieces_is_whole(client: httpx.Client, name: str) -> None:
    big = np.random.default_rng(0).integers(0, 256, 9 * 2**20 + 17, np.uint8)
    put_raw(client, name, big)
    answer = client.get(f"/tensors/{name}/content")
    assert answer.content == big.tobytes()
    head = client.head(f"/tensors/{name}/content")
    assert head.headers["content-length"] == str(len(big))
    assert head.content == b""
    part = client.get(f"/tensors/{name}/content?rows=5:9000000")
    assert part.content == big[5:9000000].tobytes()


def test_a_failed_condition_is_told_before_the_body_is_sent(client: httpx.Client, name: str) -> None:
    put_raw(client, name, TABLE)

    def body() -> Iterator[bytes]:
        yield npy(np.zeros(10))
        raise AssertionError("the rest was asked for")

    with pytest.raises((AssertionError, httpx.WriteError)):
        client.put(f"/tensors/{name}", content=body(), headers={"if-none-match": "*"})
    assert client.get(f"/tensors/{name}").json()["shape"] == [6, 4]


def digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def test_a_content_digest_is_compared(client: httpx.Client, name: str) -> None:
    body = npy(TABLE)
    for given in (digest(body), f"sha-512=:AAAA:, {digest(body)}", "sha-512=:AAAA:"):
        assert client.put(f"/tensors/{name}", content=body, headers={"content-digest": given}).status_code < 300
    packed = gzip.compress(body)
    headers = {"content-digest": digest(packed), "content-encoding": "gzip"}
    assert client.put(f"/tensors/{name}", content=packed, headers=headers).status_code == 200
    answer = client.put(f"/tensors/{name}", content=npy(TABLE + 1), headers={"content-digest": digest(body)})
    error(answer, 400, "malformed_request", "/content-digest")
    assert client.get(f"/tensors/{name}/content").content == TABLE.tobytes()


def test_the_list_has_pages(start: Start) -> None:
    with start("--kernel", "numpy") as server, server.client() as client:
        assert client.get("/tensors").json() == {"tensors": [], "next": None}
        for number in range(7):
            put_raw(client, f"n{number}", TABLE)
        names, after, pages = [], None, 0
        while pages == 0 or after:
            query = {"limit": "3", **({"after": after} if after else {})}
            page = client.get("/tensors", params=query).json()
            names += [metadata["name"] for metadata in page["tensors"]]
            after = page["next"]
            pages += 1
        assert names == [f"n{number}" for number in range(7)]
        assert pages == 3
        assert client.get("/tensors/n3").json() == client.get("/tensors").json()["tensors"][3]
        assert client.head("/tensors").content == b""


def test_options_are_recorded(client: httpx.Client, name: str) -> None:
    answer = client.put(f"/tensors/{name}?prefault=true&lock=true", content=npy(TABLE))
    assert (answer.json()["prefault"], answer.json()["lock"]) == (True, True)
    assert look_up(client, name, [0]).status_code == 200
    assert client.put(f"/tensors/{name}", content=npy(TABLE)).json()["prefault"] is False


def test_a_second_service_on_the_folder_refuses_and_says_which(start: Start, tmp_path: Any) -> None:
    options = ("--kernel", "numpy", "--store-dir", str(tmp_path / "kept"))
    with start(*options) as server, server.client() as client:
        put_raw(client, "x", TABLE)
        with pytest.raises(AssertionError, match="the server ended with 1") as caught, start(*options):
            pass
        assert str(tmp_path / "kept") in str(caught.value)
        assert "GATHERND_STORE_DIR" in str(caught.value)
        assert "Traceback" not in str(caught.value)
        assert look_up(client, "x", [0]).status_code == 200

"""Tables with keys over HTTP: upload, added keys, downloads, restarts, workers, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from tests.http.conftest import Start
from tests.http.keyed import body, of_texts
from tests.http.tensors import NPY, RAW, SAFETENSORS, error, npy, put_raw, scatter_body
from tests.strings import framed

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
INTEGERS = np.array([7, -1, 3, 2**62])
TEXTS = ["a", "bé", "", "z\0"]
HEADERS = {"content-type": SAFETENSORS}


COLUMNS = {
    "int64": {"keys": INTEGERS},
    "uint64": {"keys": INTEGERS.astype(np.uint64)},
    "string": of_texts(TEXTS),
}
VALUES: dict[str, list[Any]] = {
    "int64": INTEGERS.tolist(),
    "uint64": COLUMNS["uint64"]["keys"].tolist(),
    "string": TEXTS,
}


def put_keyed(client: httpx.Client, name: str, data: NDArray[Any] = ROWS, **keys: NDArray[Any]) -> httpx.Response:
    return client.put(f"/tensors/{name}", content=body(**keys, data=data), headers=HEADERS)


def gathered(client: httpx.Client, name: str, dtype: str, keys: list[Any]) -> Any:
    """The rows of these keys."""
    asked = {"data": {"tensor": name}, "keys": {"dtype": dtype, "shape": [len(keys)], "values": keys}}
    answer = client.post("/gather", json=asked)
    assert answer.status_code == 200, answer.text
    output = answer.json()["output"]
    return np.array(output["values"]).reshape(output["shape"])


def saved(answer: httpx.Response) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors answer."""
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == int(answer.headers["content-length"])
    found: dict[str, NDArray[Any]] = safetensors.numpy.load(answer.content)
    return found


@pytest.mark.parametrize("dtype", COLUMNS)
def test_a_table_is_uploaded_with_its_keys_and_its_rows_are_found_by_them(
    client: httpx.Client, name: str, dtype: str
) -> None:
    made = put_keyed(client, name, **COLUMNS[dtype])
    assert made.status_code == 201, made.text
    assert made.json()["keys"]["dtype"] == dtype
    assert client.get(f"/tensors/{name}").json() == made.json()
    np.testing.assert_array_equal(gathered(client, name, dtype, VALUES[dtype][::-1]), ROWS[::-1])


@pytest.mark.parametrize("dtype", COLUMNS)
def test_what_a_download_has_an_upload_takes(client: httpx.Client, name: str, dtype: str) -> None:
    made = put_keyed(client, name, **COLUMNS[dtype]).json()
    whole = client.get(f"/tensors/{name}/content", headers={"accept": SAFETENSORS})
    again = client.put(f"/tensors/{name}", content=whole.content, headers=HEADERS).json()
    assert (again["keys"], again["sha256"], again["version"]) == (made["keys"], made["sha256"], 2)
    assert client.get(f"/tensors/{name}/content", headers={"accept": SAFETENSORS}).content == whole.content
    head = client.head(f"/tensors/{name}/content", headers={"accept": SAFETENSORS})
    assert head.headers["content-length"] == str(len(whole.content))
    rows = client.get(f"/tensors/{name}/content", headers={"accept": NPY})
    np.testing.assert_array_equal(np.load(io.BytesIO(rows.content)), ROWS)


@pytest.mark.parametrize("dtype", COLUMNS)
@pytest.mark.parametrize(("first", "last"), [(1, 3), (0, 0), (3, 4), (0, 4)])
def test_rows_come_with_their_keys(client: httpx.Client, name: str, dtype: str, first: int, last: int) -> None:
    put_keyed(client, name, **COLUMNS[dtype])
    rows = {"rows": f"{first}:{last}"}
    found = saved(client.get(f"/tensors/{name}/content", params=rows, headers={"accept": SAFETENSORS}))
    np.testing.assert_array_equal(found.pop("data"), ROWS[first:last])
    expected = of_texts(TEXTS[first:last]) if dtype == "string" else {"keys": COLUMNS[dtype]["keys"][first:last]}
    assert found.keys() == {key.replace("__", ".") for key in expected}
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key.replace("__", ".")], array)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integer_keys_are_downloaded_in_each_format(client: httpx.Client, name: str, dtype: str) -> None:
    keys = COLUMNS[dtype]["keys"]
    made = put_keyed(client, name, keys=keys)
    path = f"/tensors/{name}/keys"
    raw = client.get(path)
    assert (raw.headers["content-type"], raw.content) == (RAW, keys.tobytes())
    assert (raw.headers["x-gathernd-dtype"], raw.headers["x-gathernd-shape"]) == (dtype, "4")
    assert raw.headers["etag"] == made.headers["etag"]
    np.testing.assert_array_equal(np.load(io.BytesIO(client.get(path, headers={"accept": NPY}).content)), keys)
    np.testing.assert_array_equal(saved(client.get(path, headers={"accept": SAFETENSORS}))["keys"], keys)
    assert client.get(path, headers={"if-none-match": raw.headers["etag"]}).status_code == 304
    assert client.head(path).headers["content-length"] == "32"


def test_string_keys_are_downloaded_framed_or_as_two_tensors(client: httpx.Client, name: str) -> None:
    texts = [f"{number} é" * (number % 5) + str(number) for number in range(10_000)]
    assert put_keyed(client, name, np.zeros(len(texts), np.float32), **of_texts(texts)).status_code == 201
    path = f"/tensors/{name}/keys"
    raw = client.get(path)
    assert (raw.headers["content-type"], raw.headers["x-gathernd-dtype"]) == (RAW, "string")
    assert raw.content == framed(texts)
    found = saved(client.get(path, headers={"accept": f"{SAFETENSORS}, */*"}))
    np.testing.assert_array_equal(found["keys.offsets"], of_texts(texts)["keys__offsets"])
    np.testing.assert_array_equal(found["keys.bytes"], of_texts(texts)["keys__bytes"])
    error(client.get(path, headers={"accept": NPY}), 422, "unsupported_dtype", "/accept")


def test_a_table_without_keys_has_none_to_download(client: httpx.Client, name: str) -> None:
    assert put_raw(client, name, ROWS).json()["keys"] is None
    error(client.get(f"/tensors/{name}/keys"), 422, "no_keys")
    error(client.get("/tensors/no-such-table/keys"), 404, "tensor_not_found")


def bodies_of_keys() -> dict[str, tuple[bytes, dict[str, str], dict[str, str]]]:
    """The same keys in every form: body, query, header fields."""
    query = {"dtype": "int64", "shape": "4"}
    return {
        "npy": (npy(INTEGERS), {}, {"content-type": NPY}),
        "npy by magic": (npy(INTEGERS), {}, {}),
        "big endian": (npy(INTEGERS.astype(">i8")), {}, {}),
        "raw": (INTEGERS.tobytes(), query, {"content-type": RAW}),
        "safetensors": (body(keys=INTEGERS), {}, HEADERS),
    }


@pytest.mark.parametrize("form", bodies_of_keys())
def test_keys_are_added_to_a_table_in_each_format(client: httpx.Client, name: str, form: str) -> None:
    content, query, headers = bodies_of_keys()[form]
    etag = put_raw(client, name, ROWS).headers["etag"]
    answer = client.put(f"/tensors/{name}/keys", content=content, params=query, headers=headers | {"if-match": etag})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["version"], answer.json()["keys"]["dtype"]) == (2, "int64")
    assert answer.headers["etag"] != etag
    np.testing.assert_array_equal(gathered(client, name, "int64", [3, 7]), ROWS[[2, 0]])


def test_keys_belong_to_the_rows_that_their_sender_knows(client: httpx.Client, name: str) -> None:
    etag = put_raw(client, name, ROWS).headers["etag"]
    path = f"/tensors/{name}/keys"
    error(client.put(path, content=npy(INTEGERS)), 422, "invalid_field", "/if-match")
    client.post(f"/tensors/{name}/scatter", json=scatter_body([[0]], np.ones((1, 3), np.float32)))
    error(client.put(path, content=npy(INTEGERS), headers={"if-match": etag}), 412, "precondition_failed")
    assert client.put(path, content=npy(INTEGERS), headers={"if-match": "*"}).status_code == 200
    np.testing.assert_array_equal(gathered(client, name, "int64", [7]), [[1, 1, 1]])
    error(client.put(path, content=npy(INTEGERS), headers={"if-match": "*"}), 422, "invalid_field", "/keys")
    error(
        client.put("/tensors/none/keys", content=npy(INTEGERS), headers={"if-match": "*"}), 412, "precondition_failed"
    )


@pytest.mark.parametrize(
    ("content", "code", "pointer"),
    [
        (npy(np.array([7, 7, 1, 2])), "keys_not_unique", "/keys"),
        (npy(np.arange(3)), "element_count_mismatch", "/keys"),
        (npy(np.arange(4).reshape(4, 1)), "invalid_field", "/body"),
        (npy(np.arange(4, dtype=np.int32)), "unsupported_dtype", "/body"),
        (body(keys=INTEGERS, data=ROWS), "invalid_field", "/body"),
        (npy(INTEGERS)[:-1], "element_count_mismatch", "/body"),
    ],
)
def test_bad_keys_are_not_added(client: httpx.Client, name: str, content: bytes, code: str, pointer: str) -> None:
    before = put_raw(client, name, ROWS).json()
    error(client.put(f"/tensors/{name}/keys", content=content, headers={"if-match": "*"}), 422, code, pointer)
    assert client.get(f"/tensors/{name}").json() == before


BAD: dict[str, tuple[dict[str, NDArray[Any]], str, str]] = {
    "another order": ({"data": ROWS, "keys": INTEGERS}, "invalid_field", "/body"),
    "bytes first": ({**dict(reversed(of_texts(TEXTS).items())), "data": ROWS}, "invalid_field", "/body"),
    "no data": (of_texts(TEXTS), "invalid_field", "/body"),
    "another tensor": ({"keys": INTEGERS, "data": ROWS, "more": ROWS}, "invalid_field", "/body"),
    "both kinds": ({"keys": INTEGERS, **of_texts(TEXTS), "data": ROWS}, "invalid_field", "/body"),
    "int32": ({"keys": INTEGERS.astype(np.int32), "data": ROWS}, "unsupported_dtype", "/keys"),
    "floats": ({"keys": INTEGERS.astype(np.float64), "data": ROWS}, "unsupported_dtype", "/keys"),
    "two dimensions": ({"keys": INTEGERS.reshape(4, 1), "data": ROWS}, "invalid_field", "/keys"),
    "too few": ({"keys": INTEGERS[:3], "data": ROWS}, "element_count_mismatch", "/keys"),
    "a scalar": ({"keys": INTEGERS[:1], "data": ROWS[0, 0].reshape(())}, "element_count_mismatch", "/keys"),
    "no offsets": (
        {"keys__offsets": np.empty(0, np.int64), "keys__bytes": np.empty(0, np.uint8), "data": ROWS[:0]},
        "element_count_mismatch", "/keys.offsets",
    ),
    "offsets that fall": (
        {**of_texts(TEXTS), "keys__offsets": np.array([0, 4, 3, 4, 6]), "data": ROWS},
        "invalid_field", "/keys.offsets",
    ),
    "no UTF-8": (
        {"keys__offsets": np.arange(5), "keys__bytes": np.full(4, 255, np.uint8), "data": ROWS},
        "value_not_representable", "/keys",
    ),
    "equal integers": ({"keys": np.array([7, 1, 7, 7]), "data": ROWS}, "keys_not_unique", "/keys"),
    "equal strings": ({**of_texts(["a", "a", "b", "a"]), "data": ROWS}, "keys_not_unique", "/keys"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_upload_with_bad_keys_is_refused(client: httpx.Client, name: str, case: str) -> None:
    tensors, code, pointer = BAD[case]
    error(client.put(f"/tensors/{name}", content=body(**tensors), headers=HEADERS), 422, code, pointer)
    error(client.get(f"/tensors/{name}"), 404, "tensor_not_found")


def test_a_large_table_with_keys_streams_and_comes_back(client: httpx.Client, name: str) -> None:
    keys = np.random.default_rng(0).permutation(1 << 18).astype(np.int64) * 2**30
    rows = np.arange(keys.size * 16, dtype=np.float32).reshape(keys.size, 16)  # 16 MiB

    def sent() -> Iterator[bytes]:
        whole = body(keys=keys, data=rows)
        for start in range(0, len(whole), 99_999):
            yield whole[start : start + 99_999]

    assert client.put(f"/tensors/{name}", content=sent(), headers=HEADERS).status_code == 201
    found = saved(client.get(f"/tensors/{name}/content", headers={"accept": SAFETENSORS}))
    np.testing.assert_array_equal(found["keys"], keys)
    np.testing.assert_array_equal(found["data"], rows)
    picks = [5, 100_000, 2**18 - 1]
    np.testing.assert_array_equal(gathered(client, name, "int64", keys[picks].tolist()), rows[picks])


@pytest.mark.parametrize("offset", [2**61, -5])
def test_keys_that_are_damaged_while_they_are_served_are_not_sent(start: Start, tmp_path: Path, offset: int) -> None:
    with start("--store-dir", str(tmp_path / "kept")) as server, server.client() as client:
        put_keyed(client, "x", **of_texts(TEXTS))
        whole = client.get("/tensors/x/keys", headers={"accept": RAW})
        assert whole.content == framed(TEXTS)
        (path,) = (tmp_path / "kept" / "tensors").glob("*.keys")
        with path.open("r+b") as file:
            file.seek(4096 + 16 * 2)  # where the third key begins
            file.write(offset.to_bytes(8, "little", signed=True))
        for what, accept in (("keys", RAW), ("keys", SAFETENSORS), ("content", SAFETENSORS)):
            error(client.get(f"/tensors/x/{what}", headers={"accept": accept}), 500, "tensor_damaged")
        rows = client.get("/tensors/x/content?rows=2:4", headers={"accept": SAFETENSORS})
        error(rows, 500, "tensor_damaged")
        assert client.get("/tensors/x/content", headers={"accept": RAW}).content == ROWS.tobytes()

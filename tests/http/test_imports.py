"""Imports over HTTP: a tensor that the service itself reads from a range server, a file, and what it refuses."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.conftest import Start
from tests.http.held import ended
from tests.http.keyed import body as ordered
from tests.http.keyed import of_texts
from tests.http.server import Server
from tests.http.tensors import npy, npy_of_python_2, put_raw, save
from tests.imports.range_server import RangeServer, range_server
from tests.strings import framed

TABLE = np.arange(300 * 64, dtype=np.float32).reshape(300, 64)


@pytest.fixture(scope="module")
def source() -> Iterator[RangeServer]:
    with range_server() as running:
        yield running


@pytest.fixture(autouse=True)
def plain(source: RangeServer) -> None:
    source.files = {
        "/tables/a.npy": npy(TABLE),
        "/tables/many.safetensors": save(first=TABLE, second=TABLE[:5] + 1, third=np.arange(4)),
        "/other/a.npy": npy(TABLE),
    }
    source.fields, source.cut_every, source.cuts, source.sent, source.etag = {}, None, 0, 0, True
    source.asked, source.headers, source.respond = [], [], lambda handler: False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def importing(start: Start, source: RangeServer, folder: Path) -> Iterator[Server]:
    allowed = f"{source.url}/tables/,file://{folder}"
    with start("--import-from", allowed, "--keep-versions", "2", "--max-imports", "2") as server:
        yield server


@pytest.fixture
def client(importing: Server) -> httpx.Client:
    return importing.shared_client()


def begin(
    client: httpx.Client, name: str, url: str, tensor: str | None = None, *, keys: str | None = None, **options: Any
) -> httpx.Response:
    body = {"url": url, "tensor": tensor, "keys": keys}
    body = {member: text for member, text in body.items() if text is not None}
    return client.post(f"/tensors/{name}/import", json=body, **options)


def content(client: httpx.Client, name: str) -> np.ndarray[Any, Any]:
    answer = client.get(f"/tensors/{name}/content")
    dtype, shape = answer.headers["x-gathernd-dtype"], answer.headers["x-gathernd-shape"]
    return np.frombuffer(answer.content, dtype).reshape([int(size) for size in shape.split(",") if size])


def test_an_npy_file_becomes_the_next_version(client: httpx.Client, source: RangeServer) -> None:
    assert put_raw(client, "t", TABLE[:1]).status_code in (200, 201)
    before = client.get("/tensors/t").json()["version"]
    answer = begin(client, "t", f"{source.url}/tables/a.npy?token=SECRET")
    found = ended(client, answer)
    assert found["state"] == "done", found
    assert found["bytes_done"] == found["bytes_total"] == TABLE.nbytes
    metadata = client.get("/tensors/t").json()
    assert found["metadata"] == metadata
    assert metadata["version"] == before + 1
    assert np.array_equal(content(client, "t"), TABLE)
    assert (found["url"], found["name"], found["tensor"]) == (f"{source.url}/tables/a.npy", "t", None)
    assert source.asked[0][0] == "/tables/a.npy?token=SECRET"


@pytest.mark.parametrize(("tensor", "wanted"), [("first", TABLE), ("second", TABLE[:5] + 1), ("third", np.arange(4))])
def test_one_tensor_of_many_is_read_and_the_others_are_not(
    client: httpx.Client, source: RangeServer, tensor: str, wanted: np.ndarray[Any, Any]
) -> None:
    many = save(first=TABLE, second=TABLE[:5] + 1, third=np.arange(4), large=np.zeros(1 << 20))
    source.files["/tables/large.safetensors"] = many
    found = ended(client, begin(client, "one", f"{source.url}/tables/large.safetensors", tensor))
    assert (found["state"], found["tensor"]) == ("done", tensor)
    assert np.array_equal(content(client, "one"), wanted)
    assert source.sent <= (1 << 16) + wanted.nbytes


def test_a_file_is_imported(client: httpx.Client, folder: Path) -> None:
    for number, array in enumerate(
        (TABLE, np.asfortranarray(TABLE), TABLE.astype(">f4"), np.zeros((0, 4)), np.array(5))
    ):
        (folder / f"{number}.npy").write_bytes(npy(array))
        (folder / f"{number}-of-python-2.npy").write_bytes(npy_of_python_2(array))
        for file in (f"{number}.npy", f"{number}-of-python-2.npy"):
            found = ended(client, begin(client, "of-file", f"file://{folder}/{file}"))
            assert found["state"] == "done", found
            assert np.array_equal(content(client, "of-file"), array)


def test_versions_are_kept_and_conditions_hold_as_for_an_upload(client: httpx.Client, source: RangeServer) -> None:
    url = f"{source.url}/tables/a.npy"
    client.delete("/tensors/kept")
    first = ended(client, begin(client, "kept", url, headers={"if-none-match": "*"}))["metadata"]
    for headers in ({"if-none-match": "*"}, {"if-match": '"other"'}, {"if-none-match": first["etag"]}):
        asked = len(source.asked)
        refused = begin(client, "kept", url, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")
        assert len(source.asked) == asked
    for _ in range(2):
        etag = client.get("/tensors/kept").json()["etag"]
        ended(client, begin(client, "kept", url, headers={"if-match": etag}, params={"keep": 3}))
    assert client.get("/tensors/kept").json()["versions"] == [1, 2, 3]


def test_a_condition_that_no_longer_holds_at_the_end_fails_the_import(
    client: httpx.Client, source: RangeServer
) -> None:
    put_raw(client, "late", TABLE)
    etag = client.get("/tensors/late").json()["etag"]

    def respond(handler: Any) -> bool:
        if len(source.asked) == 2:  # the items
            put_raw(client, "late", TABLE[:2])
        return False

    source.files["/tables/late.npy"] = npy(np.zeros(1 << 20))
    source.respond = respond
    found = ended(client, begin(client, "late", f"{source.url}/tables/late.npy", headers={"if-match": etag}))
    assert (found["state"], found["error"]["code"], found["metadata"]) == ("failed", "precondition_failed", None)
    assert client.get("/tensors/late").json()["shape"] == [2, 64]


def test_an_alias_is_no_name_for_an_import(client: httpx.Client, source: RangeServer) -> None:
    put_raw(client, "aliased", TABLE)
    client.put("/aliases/an-alias", json={"tensor": f"aliased@{client.get('/tensors/aliased').json()['version']}"})
    answer = begin(client, "an-alias", f"{source.url}/tables/a.npy")
    assert (answer.status_code, answer.json()["code"]) == (409, "name_conflict")
    assert source.asked == []


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({}, 422, "invalid_field", "/url"),
        ({"url": 5}, 422, "invalid_field", "/url"),
        ({"url": "x"}, 422, "invalid_field", "/url"),
        ({"url": "{}/tables/a.npy", "tensor": 5}, 422, "invalid_field", "/tensor"),
        ({"url": "{}/tables/a.npy", "more": 5}, 422, "invalid_field", "/more"),
        ({"url": "{}/tables/a.npy", "tensor": "x"}, 422, "invalid_field", "/tensor"),
        ({"url": "{}/tables/many.safetensors"}, 422, "invalid_field", "/tensor"),
        ({"url": "{}/tables/many.safetensors", "tensor": "secnod"}, 422, "invalid_field", "/tensor"),
        ({"url": "{}/tables/a.npy", "note": 7}, 422, "invalid_field", "/note"),
        ({"url": "{}/tables/a.npy", "note": "two\nlines"}, 422, "invalid_field", "/note"),
        ({"url": "{}/other/a.npy"}, 403, "forbidden", "/url"),
        ({"url": "https://user:pass@host/x"}, 422, "invalid_field", "/url"),
        ({"url": "{}/tables/missing.npy"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/text"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/short.npy"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/long.npy"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/objects.npy"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/header.npy"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/empty"}, 502, "import_failed", "/url"),
        ({"url": "{}/tables/cut.safetensors", "tensor": "first"}, 502, "import_failed", "/url"),
        ({"url": "file:///etc/passwd"}, 403, "forbidden", "/url"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    client: httpx.Client, source: RangeServer, body: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    raw = npy(TABLE)
    source.files |= {
        "/tables/text": b"name,value\n" * 10, "/tables/short.npy": raw[:-1], "/tables/long.npy": raw + b"x",
        "/tables/objects.npy": npy(np.array([{}, []], object)), "/tables/header.npy": raw[:50], "/tables/empty": b"",
        "/tables/cut.safetensors": source.files["/tables/many.safetensors"][:-1],
    }  # fmt: skip
    client.delete("/tensors/wrong")
    sent = {name: value.format(source.url) if isinstance(value, str) else value for name, value in body.items()}
    answer = client.post("/tensors/wrong/import", json=sent)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert "user:pass" not in answer.text
    assert client.get("/tensors/wrong").status_code == 404
    assert client.get("/imports").status_code == 200


def test_a_checksum_that_does_not_match_fails_the_import(client: httpx.Client, source: RangeServer) -> None:
    source.fields = {"Repr-Digest": f"sha-256=:{b64encode(bytes(32)).decode()}:"}
    found = ended(client, begin(client, "checked", f"{source.url}/tables/a.npy?token=SECRET"))
    assert (found["state"], found["error"]["code"]) == ("failed", "import_failed")
    assert "checksum" in found["error"]["detail"]
    assert "SECRET" not in str(found)
    assert client.get("/tensors/checked").status_code == 404


def held(source: RangeServer) -> Any:
    """Have the server hold what follows the header of `held.npy` back; the event that lets it go."""
    going = Event()
    source.files["/tables/held.npy"] = npy(np.zeros(1 << 20))

    def respond(handler: Any) -> bool:
        if handler.path == "/tables/held.npy" and handler.headers["Range"] != "bytes=0-65535":
            going.wait(120)
        return False

    source.respond = respond
    return going


def test_no_more_imports_than_may_be_are_carried_out_at_once(client: httpx.Client, source: RangeServer) -> None:
    going = held(source)
    running = [begin(client, f"held{number}", f"{source.url}/tables/held.npy") for number in range(2)]
    refused = begin(client, "held2", f"{source.url}/tables/held.npy")
    assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (503, "overloaded", "imports")
    assert "retry-after" in refused.headers
    assert [one["state"] for one in client.get("/imports").json()["imports"][-2:]] == ["running", "running"]
    assert client.get("/tensors/held0").status_code == 404
    going.set()
    assert [ended(client, answer)["state"] for answer in running] == ["done", "done"]


def test_an_import_is_ended_and_forgotten(client: httpx.Client, source: RangeServer) -> None:
    going = held(source)
    answer = begin(client, "ended", f"{source.url}/tables/held.npy")
    where = answer.headers["location"]
    assert client.delete(where).status_code == 204
    assert ended(client, answer)["state"] == "cancelled"
    going.set()
    assert client.get("/tensors/ended").status_code == 404
    assert client.delete(where).status_code == 204
    for gone in (client.get(where), client.delete(where)):
        assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


def test_imports_are_listed_page_by_page(client: httpx.Client, source: RangeServer) -> None:
    made = [ended(client, begin(client, "listed", f"{source.url}/tables/a.npy"))["id"] for _ in range(3)]
    found, after = [], None
    while True:
        page = client.get("/imports", params={"limit": 2} | ({} if after is None else {"after": after})).json()
        found += [one["id"] for one in page["imports"]]
        after = page["next"]
        if after is None:
            break
    assert found == sorted(found)
    assert found[-3:] == made


def test_imports_are_counted_and_logged_without_what_is_secret(
    client: httpx.Client, source: RangeServer, importing: Server
) -> None:
    ended(client, begin(client, "counted", f"{source.url}/tables/a.npy?token=SECRET"))
    begin(client, "counted", f"{source.url}/tables/missing.npy?token=SECRET")
    time.sleep(0.5)
    metrics = client.get("/metrics").text
    assert 'gathernd_imports_total{outcome="done"}' in metrics
    assert "gathernd_imported_bytes_total" in metrics
    log = importing.log_text()
    assert "SECRET" not in log
    (line,) = [line for line in log.splitlines() if " gathernd.changes: import done name=counted " in line]
    assert f" bytes={TABLE.nbytes} " in line
    assert f" url={source.url}/tables/a.npy " in line


def test_a_quota_and_a_limit_hold_for_imports(start: Start, source: RangeServer) -> None:
    flags = ("--import-from", source.url, "--max-upload-bytes", "1MiB", "--max-store-bytes", "200KiB")
    source.files["/tables/large.npy"] = npy(np.zeros(1 << 20))
    source.files["/tables/middle.npy"] = npy(np.zeros(1 << 15))
    with start(*flags, "--max-tensors", "1", "--max-elements", "100000") as server, server.client() as client:
        for path, status, code in (
            ("large.npy", 413, "payload_too_large"), ("middle.npy", 507, "insufficient_storage"),
        ):  # fmt: skip
            answer = begin(client, "t", f"{source.url}/tables/{path}")
            assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert ended(client, begin(client, "t", f"{source.url}/tables/a.npy"))["state"] == "done"
        answer = begin(client, "u", f"{source.url}/tables/a.npy")
        assert (answer.status_code, answer.json()["limit"]) == (507, "store_tensors")


def test_without_the_setting_nothing_is_imported(start: Start, source: RangeServer) -> None:
    with start() as server, server.client() as client:
        answer = begin(client, "t", f"{source.url}/tables/a.npy")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert source.asked == []


def test_a_stop_ends_imports_and_a_restart_says_so(start: Start, source: RangeServer, tmp_path: Path) -> None:
    going = held(source)
    flags = ("--import-from", source.url, "--store-dir", str(tmp_path / "store"))
    with start(*flags) as server, server.client() as client:
        where = begin(client, "t", f"{source.url}/tables/held.npy").headers["location"]
    going.set()
    with start(*flags) as server, server.client() as client:
        found = client.get(where).json()
        assert (found["state"], found["error"]["code"]) == ("failed", "import_failed")
        assert "stopped" in found["error"]["detail"]
        assert client.get("/tensors").json()["tensors"] == []
    assert [path.name for path in (tmp_path / "store" / "incoming").iterdir()] == []


KEYS = np.arange(300) * 7
WORDS = [f"word {number}" for number in range(300)]


def test_a_table_is_imported_with_its_keys(client: httpx.Client, source: RangeServer) -> None:
    source.files["/tables/keyed.safetensors"] = ordered(other=np.zeros(3, np.float32), ids=KEYS, table=TABLE)
    answer = begin(client, "keyed", f"{source.url}/tables/keyed.safetensors", "table", keys="ids")
    found = ended(client, answer)
    assert found["state"] == "done", found
    assert found["bytes_done"] == found["bytes_total"] == KEYS.nbytes + TABLE.nbytes
    assert found["metadata"]["keys"]["dtype"] == "int64"
    assert client.get("/tensors/keyed/keys").content == KEYS.tobytes()
    assert np.array_equal(content(client, "keyed"), TABLE)


def test_a_table_is_imported_with_keys_that_are_strings(client: httpx.Client, source: RangeServer) -> None:
    texts = of_texts(WORDS)
    file = ordered(ids__offsets=texts["keys__offsets"], ids__bytes=texts["keys__bytes"], table=TABLE)
    source.respond = lambda handler: handler.answer_whole(file)  # a server that answers no ranges
    answer = begin(client, "keyed", f"{source.url}/tables/words.safetensors", keys="ids")
    assert ended(client, answer)["state"] == "done"
    assert client.get("/tensors/keyed/keys").content == framed(WORDS)
    assert np.array_equal(content(client, "keyed"), TABLE)


@pytest.mark.parametrize(
    ("file", "status", "code", "pointer"),
    [
        (ordered(table=TABLE, ids=KEYS), 502, "import_failed", "/url"),
        (ordered(ids=KEYS.astype(np.float32), table=TABLE), 502, "import_failed", "/url"),
        (ordered(ids=KEYS[:5], table=TABLE), 422, "element_count_mismatch", "/keys"),
        (ordered(keys=KEYS, table=TABLE), 422, "invalid_field", "/keys"),
        (npy(TABLE), 422, "invalid_field", "/keys"),
    ],
)
def test_an_import_without_sound_keys_is_refused_at_once(
    client: httpx.Client, source: RangeServer, file: bytes, status: int, code: str, pointer: str
) -> None:
    source.files["/tables/keyed"] = file
    answer = begin(client, "unsound", f"{source.url}/tables/keyed", keys="ids")
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_an_import_with_equal_keys_fails(client: httpx.Client, source: RangeServer) -> None:
    source.files["/tables/equal.safetensors"] = ordered(ids=KEYS // 14, table=TABLE)
    found = ended(client, begin(client, "equal", f"{source.url}/tables/equal.safetensors", keys="ids"))
    assert (found["state"], found["error"]["code"]) == ("failed", "keys_not_unique")
    assert client.get("/tensors/equal").status_code == 404

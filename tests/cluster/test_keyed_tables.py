"""Tables with keys in a cluster: rows are placed by the hash of their keys, and answers are those of one machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.cluster import keyed_cases
from tests.cluster.clustered import KERNEL, Clustered, clustered, routing, until
from tests.cluster.keyed_cases import KEY_TYPES, Keyed, keys_of, random_table, repeated
from tests.cluster.running import BothTransport, put
from tests.conftest import SOAK, slow_but_for
from tests.http.conftest import Start, start
from tests.http.tensors import NPY, RAW, SAFETENSORS, npy
from tests.imports.range_server import range_server
from tests.parity.items import Array, choose
from tests.parity.messages import loaded, unframed

__all__ = ["start"]

COUNT = 20_000 if SOAK else 60
"""Uploads and requests."""
PLAIN = {"plain": np.arange(40, dtype=np.float32).reshape(8, 5)}


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def both_keyed(start: Start, cluster: Clustered) -> Iterator[BothTransport]:
    with start(*KERNEL) as whole:
        made = BothTransport(cluster.router, whole)
        yield made
        made.close()


@pytest.fixture
def asked(both_keyed: BothTransport) -> httpx.Client:
    """A client whose requests go to both, whose answers have to be equal."""
    return httpx.Client(transport=both_keyed, base_url="http://both")


@pytest.fixture
def client(cluster: Clustered) -> httpx.Client:
    return cluster.router.shared_client()


def read_back(client: httpx.Client, name: str, table: Keyed) -> None:
    """Download a table from the router in every form: each key has its row."""
    whole = client.get(f"/tensors/{name}/content", headers={"accept": SAFETENSORS})
    assert whole.status_code == 200, whole.text
    assert whole.headers["content-length"] == str(len(whole.content))
    keys = keys_of(whole.content, table.key_type)
    rows = loaded(whole.content)[0]["data"]
    assert {key: row.tobytes() for key, row in zip(keys, rows, strict=True)} == {
        key: row.tobytes() for key, row in zip(table.keys, table.rows, strict=True)
    }
    bare = client.get(f"/tensors/{name}/content", headers={"accept": RAW})
    assert bare.content == rows.tobytes()
    alone = client.get(f"/tensors/{name}/keys", headers={"accept": SAFETENSORS})
    assert keys_of(alone.content, table.key_type) == keys
    raw = client.get(f"/tensors/{name}/keys", headers={"accept": RAW})
    assert raw.status_code == 200, raw.text
    for path, answer in ("content", whole), ("keys", alone):
        head = client.head(f"/tensors/{name}/{path}", headers={"accept": SAFETENSORS})
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(answer.content)))
        etag = {"accept": SAFETENSORS, "if-none-match": answer.headers["etag"]}
        assert client.get(f"/tensors/{name}/{path}", headers=etag).status_code == 304
    if table.key_type == "string":
        assert unframed(raw.content) == keys
        assert client.get(f"/tensors/{name}/keys", headers={"accept": NPY}).status_code == 422
    else:
        assert raw.content == np.array(keys, table.key_type).tobytes()


@pytest.mark.parametrize("share", slow_but_for((0,), range(2)))
def test_random_uploads_and_requests(
    asked: httpx.Client, both_keyed: BothTransport, client: httpx.Client, share: int
) -> None:
    rng = np.random.default_rng([random.SystemRandom().getrandbits(32) if SOAK else 41, share])
    for name, rows in PLAIN.items():
        put(asked, name, rows)
    held: dict[str, Keyed] = {}
    good, end = both_keyed.statuses.get(200, 0), both_keyed.compared + COUNT // (2 if SOAK else 1)
    while both_keyed.compared < end:
        name = f"t{int(rng.integers(4))}"
        if name not in held or rng.random() < 0.1:
            table = random_table(rng)
            assert table.send(asked, name).is_success
            held[name] = table
            read_back(client, name, table)
            assert asked.get(f"/tensors/{name}").status_code == 200
            asked.get(f"/v2/models/{name}")
        elif rng.random() < 0.1 and held[name].keys:
            assert repeated(rng, held[name]).send(asked, name).status_code == 422
        match choose(rng, ("gather", "gather", "lookup", "lookup", "rows")) if name in held else "":
            case "gather":
                keyed_cases.send_gather(asked, rng, name, held[name])
            case "lookup":
                keyed_cases.send_lookup(asked, rng, held, PLAIN)
            case "rows":
                keyed_cases.send_rows(asked, rng, name, held[name])
    assert both_keyed.statuses.get(200, 0) - good > COUNT // 4


def keyed(key_type: str = "int64", count: int = 500, width: int = 4) -> Keyed:
    keys = [f"key {number}" if key_type == "string" else 3 * number + 1 for number in range(count)]
    return Keyed(keys, key_type, np.arange(count * width, dtype=np.float32).reshape(count, width))


def gathered(client: httpx.Client, name: str, table: Keyed) -> Array:
    """The rows of all keys of a table."""
    tensor = {"dtype": table.key_type, "shape": [len(table.keys)], "values": table.keys}
    answer = client.post(
        "/gather", json={"data": {"tensor": name}, "keys": tensor, "output_encoding": "base64"},
        headers={"accept": SAFETENSORS},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return loaded(answer.content)[0]["output"]


def test_ranges_are_equal_intervals_of_the_hashes_of_keys(cluster: Clustered, client: httpx.Client) -> None:
    assert keyed().send(client, "placed").status_code == 201
    segments = cluster.segments("placed")
    assert [(one.start, one.stop) for one in segments] == [(n << 62, n + 1 << 62) for n in range(4)]
    assert sum(one.row_count for one in segments) == 500
    assert all(80 < one.row_count < 170 for one in segments)
    ranges = client.get("/tensors/placed").json()["ranges"]
    assert [one["stop"] - one["start"] for one in ranges] == [one.row_count for one in segments]


@pytest.mark.parametrize("key_type", slow_but_for(("string",), KEY_TYPES))
def test_rows_of_many_bytes_and_many_rows(client: httpx.Client, key_type: str) -> None:
    for table in (keyed(key_type, 6, 1 << 18), keyed(key_type, 4000, 30)):
        assert table.send(client, "large").is_success
        assert np.array_equal(gathered(client, "large", table), table.rows)
        read_back(client, "large", table)


def test_what_is_by_position_is_refused_and_the_hint_says_what_to_send(client: httpx.Client) -> None:
    assert keyed().send(client, "keyed").is_success
    indices = {"dtype": "int64", "shape": [1, 1], "values": [0]}
    updates = {"dtype": "float32", "shape": [1, 4], "values": [0] * 4}
    keys = {"dtype": "int64", "shape": [1], "values": [5]}
    by_key = {"data": {"tensor": "keyed"}, "keys": keys, "missing": "row", "missing_row": 3}
    answers = [
        client.post("/gathernd", json={"data": {"tensor": "keyed"}, "indices": indices}),
        client.post("/lookup", json={"features": [{"tensor": "keyed", "indices": keys}]}),
        client.post("/gather", json=by_key),
        client.post("/tensors/keyed/scatter", json={"indices": indices, "updates": updates}),
        client.get("/tensors/keyed/content?rows=0:1"),
        client.put("/tensors/keyed/keys", content=npy(np.arange(500)), headers={"if-match": "*"}),
    ]
    answers += [
        Keyed([1], "int64", np.zeros((1, 4), np.float32), {"capacity": "9"}).send(client, "keyed"),
    ]
    assert [answer.status_code for answer in answers] == [501] * 7, [answer.text for answer in answers]
    pointers = [answer.json()["errors"][0]["pointer"] for answer in answers[:5]]
    assert pointers == ["/indices/values", "/features/0/indices/values", "/missing_row", "/indices", "/query/rows"]
    assert "keys" in answers[0].json()["hint"]


def test_an_explanation_says_how_many_keys_each_range_has(cluster: Clustered, client: httpx.Client) -> None:
    table = keyed("string")
    assert table.send(client, "explained").is_success
    keys = {"dtype": "string", "shape": [len(table.keys)], "values": table.keys}
    gather = {"data": {"tensor": "explained"}, "keys": keys}
    lookup = {"features": [{"tensor": "explained", "keys": keys}]}
    in_gather = client.post("/gather?explain=true", json=gather).json()["explanation"]["shards"]
    in_lookup = client.post("/lookup?explain=true", json=lookup).json()["explanation"]["features"][0]["shards"]
    assert in_gather == in_lookup
    assert [one["tuples"] for one in in_gather] == [one.row_count for one in cluster.segments("explained")]


def test_an_import_takes_keys_from_the_same_file(start: Start, cluster: Clustered, client: httpx.Client) -> None:
    table = keyed("uint64", 900)
    with range_server() as source:
        source.files = {"/users.safetensors": table.content}
        with routing(start, cluster.database, "--import-from", f"{source.url}/") as router:
            asked = router.shared_client()
            body = {"url": f"{source.url}/users.safetensors", "tensor": "data", "keys": "keys"}
            answer = asked.post("/tensors/imported/import", json=body)
            assert answer.status_code == 202, answer.text
            place = answer.headers["location"]
            until(lambda: asked.get(place).json()["state"] != "running", "the import has ended")
            assert asked.get(place).json()["state"] == "done"
    assert np.array_equal(gathered(client, "imported", table), table.rows)


@pytest.mark.slow
def test_keys_of_a_lost_shard_are_looked_up_on_others_and_else_the_error_says_which_need_it(
    cluster: Clustered, client: httpx.Client
) -> None:
    table = keyed("string")
    assert table.send(client, "kept").is_success
    single = Keyed(table.keys, "string", table.rows, {"replicas": "1"})
    assert single.send(client, "single").is_success
    lost = cluster.segments("single")[0].nodes[0]
    cluster.kill(lost)
    assert np.array_equal(gathered(client, "kept", table), table.rows)
    after = keyed("uint64")
    assert after.send(client, "after").is_success
    assert np.array_equal(gathered(client, "after", after), after.rows)
    keys = {"dtype": "string", "shape": [len(table.keys)], "values": table.keys}

    def is_told(path: str, body: dict[str, Any]) -> bool:
        """Whether the error counts the keys of the lost shard: what was about to leave it goes on to do so."""
        problem = client.post(path, json=body).json()
        assert problem["code"] == "shard_unavailable"
        for place in problem["errors"]:
            number = place["position"][0]
            assert place["value"] == table.keys[number]
            assert place["pointer"].endswith(f"/keys/values/{number}")
        needed = [one.row_count for one in cluster.segments("single") if one.nodes == (lost,)]
        return bool(problem["total"] == sum(needed))

    until(lambda: is_told("/gather", {"data": {"tensor": "single"}, "keys": keys}), "a gather tells the keys")
    until(lambda: is_told("/lookup", {"features": [{"tensor": "single", "keys": keys}]}), "a lookup tells the keys")

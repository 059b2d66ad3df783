"""Upserts and removals by key through routers: each answer, and each row, is that of one machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.cluster.catalogue.records import Options
from tests.cluster.clustered import KERNEL, Clustered, clustered, until
from tests.cluster.keyed_cases import KEY_TYPES, Keyed, key_arrays, random_key
from tests.cluster.replicated import Replicated, stopped
from tests.cluster.shard_nodes import KEY
from tests.cluster.test_keyed_tables import gathered, keyed, read_back
from tests.cluster.two_routers import client, cluster, other
from tests.conftest import SOAK, slow_but_for
from tests.http.conftest import Start, start
from tests.http.server import Server
from tests.http.tensors import NPY, SAFETENSORS, error, npy
from tests.parity.items import Array, Rng, choose
from tests.parity.messages import loaded, saved

__all__ = ["client", "cluster", "other", "start"]

CHANGES = 4000 if SOAK else 25
REDUCTIONS: dict[str, Any] = {
    "none": lambda _, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@pytest.fixture(scope="module")
def one_range(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    options = Options(ranges=1, replicas=3, key=KEY)
    with clustered(start, warmed, tmp_path_factory.mktemp("one"), options=options) as running:
        yield running


def send(
    client: httpx.Client,
    name: str,
    keys: list[Any],
    key_type: str,
    updates: Array | None = None,
    headers: Mapping[str, str] | None = None,
    reduction: str = "none",
) -> httpx.Response:
    """An upsert, or a removal without updates."""
    arrays = key_arrays(keys, key_type) | ({} if updates is None else {"updates": updates})
    what, query = ("remove", "") if updates is None else ("upsert", f"?reduction={reduction}")
    sent = {"content-type": SAFETENSORS, **(headers or {})}
    return client.post(f"/tensors/{name}/{what}{query}", content=saved(arrays), headers=sent)


def changed(answer: httpx.Response) -> dict[str, int]:
    """What an answer counts."""
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.json().items() if name not in ("name", "etag", "ranges")}


def updated(table: Keyed, keys: list[Any], updates: Array, reduction: str) -> Keyed:
    """The table after an upsert."""
    rows = dict(zip(table.keys, table.rows.copy(), strict=True))
    for key, update in zip(keys, updates, strict=True):
        old = rows.get(key, np.zeros_like(update))
        rows[key] = REDUCTIONS[reduction](old, update)
    made = np.array([*rows.values()], table.rows.dtype).reshape(len(rows), *table.rows.shape[1:])
    return Keyed([*rows], table.key_type, made)


def without(table: Keyed, keys: list[Any]) -> Keyed:
    """The table after a removal."""
    kept = [place for place, key in enumerate(table.keys) if key not in {*keys}]
    return Keyed([table.keys[place] for place in kept], table.key_type, table.rows[kept])


def some_keys(rng: Rng, table: Keyed) -> list[Any]:
    """Known and new keys, some of them twice."""
    known = [choose(rng, table.keys) for _ in range(int(rng.integers(0, 20)))] if table.keys else []
    fresh = [random_key(rng, table.key_type) for _ in range(int(choose(rng, (0, 1, 5, 60))))]
    keys = [*known, *fresh]
    rng.shuffle(keys)
    return keys


@pytest.mark.parametrize("key_type", slow_but_for(("string",), KEY_TYPES))
def test_random_changes_are_those_of_one_machine(
    start: Start, cluster: Clustered, other: Server, key_type: str
) -> None:
    rng = np.random.default_rng([random.SystemRandom().getrandbits(32) if SOAK else 7, KEY_TYPES.index(key_type)])
    name = f"random-{key_type}"
    keys = list(dict.fromkeys(random_key(rng, key_type) for _ in range(30)))
    table = Keyed(keys, key_type, rng.integers(-9, 9, (len(keys), 3)).astype(np.float32))
    with start(*KERNEL) as machine, cluster.router.client() as first, other.client() as second:
        whole = machine.shared_client()
        for one in (first, whole):
            assert table.send(one, name).is_success
        for turn in range(CHANGES):
            wanted, router = some_keys(rng, table), choose(rng, (first, second))
            if rng.random() < 0.6:
                updates = rng.integers(-9, 9, (len(wanted), 3)).astype(np.float32)
                how = choose(rng, [*REDUCTIONS])
                if how == "mul":
                    updates = np.abs(updates)  # of 0 and -0 either may be the smaller one
                answers = [send(one, name, wanted, key_type, updates, reduction=how) for one in (router, whole)]
                table = updated(table, wanted, updates, how)
            else:
                answers = [send(one, name, wanted, key_type) for one in (router, whole)]
                table = without(table, wanted)
            assert changed(answers[0]) == changed(answers[1])
            assert answers[0].json()["rows"] == len(table.keys)
            if turn % 8 == 0:
                read_back(router, name, table)
                assert router.get(f"/tensors/{name}").json()["shape"] == [len(table.keys), 3]
        read_back(first, name, table)
        read_back(whole, name, table)
        if table.keys:
            assert np.array_equal(gathered(second, name, table), table.rows)


def test_what_the_router_tells_of_a_table_is_of_its_rows_now(client: httpx.Client, other: Server) -> None:
    table = keyed("int64", 40)
    assert table.send(client, "told").is_success
    keys = list(range(1000, 1100))
    answer = send(client, "told", keys, "int64", np.ones((100, 4), np.float32))
    assert changed(answer) == {"rows": 140, "inserted": 100}
    assert answer.json()["ranges"] == 4
    assert changed(send(client, "told", [1, 1, 4, 5555], "int64")) == {"rows": 138, "removed": 2, "missing": 1}
    for one in (client, other.shared_client()):
        told = one.get("/tensors/told").json()
        assert (told["shape"], told["bytes"]) == ([138, 4], 138 * 16)
        assert told["ranges"][-1]["stop"] == 138
        (listed,) = [each for each in one.get("/tensors").json()["tensors"] if each["name"] == "told"]
        assert listed["shape"] == [138, 4]
        assert listed["etag"] == told["etag"]
    assert changed(send(client, "told", [], "int64")) == {"rows": 138, "removed": 0, "missing": 0}
    as_npy = client.get("/tensors/told/content", headers={"accept": NPY})
    assert as_npy.headers["x-gathernd-shape"] == "138,4"


def test_a_retry_is_answered_alike_by_every_router_and_changes_nothing(client: httpx.Client, other: Server) -> None:
    table = keyed("string", 40)
    assert table.send(client, "retried").is_success
    ones, keys = np.ones((3, 4), np.float32), ["new", "key 3", "new"]
    sent = {"idempotency-key": "r-1"}
    first = send(client, "retried", keys, "string", ones, sent, "add")
    assert changed(first) == {"rows": 41, "inserted": 1}
    for one in (client, other.shared_client()):
        again = send(one, "retried", keys, "string", ones, sent, "add")
        assert again.json() == first.json()
        error(send(one, "retried", ["key 3"], "string", ones[:1], sent), 422, "invalid_field", "/idempotency-key")
        error(send(one, "retried", ["key 3"], "string", None, sent), 422, "invalid_field", "/idempotency-key")
    read_back(client, "retried", updated(table, keys, ones, "add"))
    removal = {"idempotency-key": "r-2"}
    gone = [changed(send(one, "retried", ["new", "x"], "string", None, removal)) for one in (client, client)]
    assert gone == [{"rows": 40, "removed": 1, "missing": 1}] * 2


def test_what_is_refused(client: httpx.Client) -> None:
    table = keyed("int64", 40)
    assert table.send(client, "strict").is_success
    plain = {"content-type": NPY}
    ones = np.ones((1, 4), np.float32)
    error(send(client, "absent", [1], "int64", ones), 404, "tensor_not_found")
    error(send(client, "strict", ["1"], "string", ones), 422, "unsupported_dtype")
    error(send(client, "strict", [1], "int64", ones[:, :3]), 422, "updates_shape_mismatch")
    error(send(client, "strict", [1], "int64", ones.astype(np.float64)), 422, "unsupported_dtype")
    error(send(client, "strict", [1], "int64", ones, {"if-match": '"x-1"'}), 501, "not_implemented")
    assert client.put("/tensors/bare", content=npy(ones), headers=plain).is_success
    error(send(client, "bare", [1], "int64", ones), 422, "no_keys")
    read_back(client, "strict", table)


def test_a_download_is_whole_while_rows_come_and_go(cluster: Clustered, client: httpx.Client) -> None:
    table = keyed("int64", 400, 64)
    assert table.send(client, "busy").is_success

    def change() -> None:
        with cluster.router.client() as own:
            for turn in range(12):
                keys = list(range(100_000, 100_000 + 40 * (turn + 1)))
                assert send(own, "busy", keys, "int64", np.full((len(keys), 64), turn, np.float32)).is_success
                assert send(own, "busy", keys[::2], "int64").is_success

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(change)
        while not running.done():
            for accept in (SAFETENSORS, NPY):
                answer = client.get("/tensors/busy/content", headers={"accept": accept})
                assert answer.status_code == 200, answer.text
                assert len(answer.content) == int(answer.headers["content-length"])
                if accept == SAFETENSORS:
                    arrays, _ = loaded(answer.content)
                    assert len(arrays["keys"]) == len(arrays["data"])
                    rows = dict(zip(arrays["keys"].tolist(), arrays["data"], strict=True))
                    assert all(np.array_equal(rows[key], row) for key, row in zip(table.keys, table.rows, strict=True))
            assert np.array_equal(gathered(client, "busy", table), table.rows)
        running.result()


@pytest.mark.slow
def test_a_shard_that_is_drained_gives_its_rows_and_keys_to_others(cluster: Clustered, client: httpx.Client) -> None:
    table = keyed("string", 60)
    assert table.send(client, "moved").is_success
    keys = [f"more {number}" for number in range(200)]
    rows = np.arange(800, dtype=np.float32).reshape(200, 4)
    assert changed(send(client, "moved", keys, "string", rows))["inserted"] == 200
    table = without(updated(table, keys, rows, "none"), keys[::3])
    assert changed(send(client, "moved", keys[::3], "string"))["removed"] == 67
    cluster.begin("s9")
    cluster.drain("s0")
    until(lambda: not any(node == "s0" for node, _ in cluster.wanted()), "the shard has given everything up")
    until(lambda: cluster.stored() == cluster.wanted(), "all copies are there")
    read_back(client, "moved", table)
    assert changed(send(client, "moved", keys[1:2], "string"))["removed"] == 1


def test_a_table_of_one_range_takes_etags(one_range: Clustered) -> None:
    client, table, ones = one_range.router.shared_client(), keyed("string", 40), np.ones((2, 4), np.float32)
    assert table.send(client, "one").is_success
    etag = client.get("/tensors/one").json()["etag"]
    first = send(client, "one", ["a", "b"], "string", ones, {"if-match": etag})
    assert changed(first) == {"rows": 42, "inserted": 2}
    error(send(client, "one", ["c"], "string", ones[:1], {"if-match": etag}), 412, "precondition_failed")
    assert send(client, "one", ["a"], "string", None, {"if-match": first.json()["etag"]}).is_success
    read_back(client, "one", without(updated(table, ["a", "b"], ones, "none"), ["a"]))


def test_a_replica_that_was_away_while_a_table_grew_copies_it_and_takes_over(one_range: Clustered) -> None:
    """The last test of its cluster: it kills a shard."""
    cluster, client, table = one_range, one_range.router.shared_client(), keyed("string", 40)
    assert table.send(client, "grown").is_success
    ones, sent = np.ones((1, 4), np.float32), {"idempotency-key": "grown"}
    assert changed(send(client, "grown", ["a"], "string", ones)) == {"rows": 41, "inserted": 1}
    replicated = Replicated(cluster, "grown")
    (tensor,) = replicated.tensors
    nodes = {*cluster.shards}
    replicated.until_in_sync(tensor, *nodes)
    primary = replicated.record(tensor).primary
    away = min(nodes - {primary})
    keys = [f"more {number}" for number in range(300)]
    many = np.arange(1200, dtype=np.float32).reshape(300, 4)
    with stopped(cluster, away):
        assert send(client, "grown", ["b"], "string", ones).is_success
        first = changed(send(client, "grown", keys, "string", many, sent))
        assert first == {"rows": 342, "inserted": 300}
    replicated.until_in_sync(tensor, *nodes)
    (last,) = nodes - {primary, away}
    cluster.kill(primary)
    assert changed(send(client, "grown", ["late"], "string", ones)) == {"rows": 343, "inserted": 1}
    assert changed(send(client, "grown", keys, "string", many, sent)) == first  # answered, and not made again
    replicated.until_in_sync(tensor, away, last)
    table = updated(table, ["a", "b", *keys, "late"], np.concatenate((ones, ones, many, ones)), "none")
    read_back(client, "grown", table)
    for node in (away, last):
        found = replicated.ask(node, "GET", f"/shard/ranges/{tensor}?rows=true").json()
        assert found["rows"] == len(table.keys)

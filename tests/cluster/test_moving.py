"""Ranges that move while they are asked for: to a shard that comes, from one that is drained, from one that is lost.

And a table that is larger than any one shard may hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import httpx
import numpy as np
import pytest

from app.cluster.coordinator.coordinator_client import CoordinatorClient
from app.cluster.shard.shard_process import capacity_of
from tests.cluster.coordinated import OPTIONS, Coordinated, coordinated, until
from tests.cluster.running import put
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import RAW

__all__ = ["start"]

TABLE = np.arange(2000 * 8, dtype=np.int32).reshape(2000, 8)


@contextmanager
def asked_all_the_time(router: Server) -> Iterator[list[str]]:
    """A load of lookups; what failed is in the list, and must be nothing at the end."""
    over, failures, answers = Event(), list[str](), 0

    def ask() -> None:
        nonlocal answers
        random = np.random.default_rng(1)
        with router.client() as client:
            while not over.is_set():
                rows = random.integers(0, len(TABLE), 32)
                body = {"data": {"tensor": "items"}, "indices": int64([32], rows.tolist())}
                answer = client.post("/gather", json=body)
                answers += 1
                if not answer.is_success:
                    failures.append(answer.text)
                elif answer.json()["output"]["values"] != TABLE[rows].ravel().tolist():
                    failures.append("wrong rows")

    thread = Thread(target=ask)
    thread.start()
    try:
        yield failures
    finally:
        over.set()
        thread.join()
    assert failures == []
    assert answers


def is_whole(cluster: Coordinated, *without: str) -> bool:
    """Whether each range has its replicas whole, none of them on a shard of `without`, on as many shards."""
    for table in cluster.coordinator.status()["tables"]:
        for one in table["ranges"]:
            nodes = {replica["node"] for replica in one["replicas"] if replica["whole"]}
            if len(nodes) < cluster.coordinator.options.replicas or nodes & set(without):
                return False
    return True


@pytest.mark.slow
def test_ranges_go_to_a_shard_that_comes_and_leave_one_that_is_drained(start: Start, tmp_path: Path) -> None:
    with coordinated(start, tmp_path, 3) as cluster, start() as fourth:
        put(cluster.router.shared_client(), "items", TABLE)
        with asked_all_the_time(cluster.router):
            cluster.agents.begin("s3", f"127.0.0.1:{fourth.port}")

            def ranges(name: str) -> int:
                found = [one["ranges"] for one in cluster.coordinator.status()["nodes"] if one["node"] == name]
                return int(found[0]) if found else 0

            until(lambda: ranges("s3") >= 1, "the new shard has ranges")
            client = CoordinatorClient(cluster.coordinator, lambda _: None)
            client.change("drain", "s0", "", cluster.coordinator.status()["generation"])
            until(lambda: not ranges("s0"), "the drained shard has none")
            assert is_whole(cluster, "s0")
            stored = cluster.shards["s0"].shared_client()
            until(lambda: not stored.get("/tensors").json()["tensors"], "what was moved is dropped")


@pytest.mark.soak
def test_ranges_of_a_lost_shard_are_copied_and_one_that_lost_its_disk_gets_them_again(
    start: Start, tmp_path: Path
) -> None:
    with coordinated(start, tmp_path, 4) as cluster:
        put(cluster.router.shared_client(), "items", TABLE)
        with asked_all_the_time(cluster.router):
            lost = cluster.coordinator.status()["tables"][0]["ranges"][0]["replicas"][0]["node"]
            cluster.agents.end(lost)
            until(lambda: is_whole(cluster, lost), "others have its ranges")
            cluster.agents.begin(lost, f"127.0.0.1:{cluster.shards[lost].port}")
            other = cluster.coordinator.status()["tables"][0]["ranges"][0]["replicas"][0]["node"]
            stored = cluster.shards[other].shared_client()
            for one in stored.get("/tensors").json()["tensors"]:
                assert stored.delete(f"/tensors/{one['name']}").status_code == 204
            until(lambda: not is_whole(cluster), "the loss is seen")
            until(lambda: is_whole(cluster), "the ranges are there again")


@pytest.mark.slow
@pytest.mark.parametrize(("ranges", "replicas"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.soak)])
def test_a_table_larger_than_any_one_shard_is_put_served_and_replaced(
    start: Start, tmp_path: Path, ranges: int, replicas: int
) -> None:
    """Stores of 1.1 times a range, twice as many as copies of ranges: replacements, one at once after the other."""
    size = 10**6
    table = np.arange(ranges * size // 4, dtype=np.int32).reshape(-1, 8)
    limit = int(1.1 * size)
    options = replace(OPTIONS, ranges=ranges, replicas=replicas)
    with ExitStack() as stack:
        flags = "--max-store-bytes", str(limit), "--kernel", "numpy"
        shards = [stack.enter_context(start(*flags)) for _ in range(2 * ranges * replicas)]
        cluster = stack.enter_context(
            coordinated(start, tmp_path, options=options, capacity=capacity_of(limit), shards=shards)
        )
        client = cluster.router.shared_client()
        for number in range(4):
            answer = put(client, "items", table + number)
            assert answer.json()["version"] == number + 1
            version = table + number
            found = client.get("/tensors/items/content", headers={"accept": RAW}).content
            assert found == version.tobytes()
            rows = np.random.default_rng(number).integers(0, len(table), 64)
            body = {"data": {"tensor": "items"}, "indices": int64([64], rows.tolist())}
            assert client.post("/gather", json=body).json()["output"]["values"] == version[rows].ravel().tolist()
            for node in cluster.coordinator.status()["nodes"]:
                assert node["bytes"] <= size < node["capacity"] < limit < table.nbytes
        until(lambda: _stored(cluster) == ranges * replicas, "the older versions are dropped")
        length = len(table) + len(table) // 8
        query = {"dtype": "int32", "shape": f"{length},8"}
        headers = {"content-type": RAW}
        large = client.put("/tensors/large", params=query, content=bytes(length * 32), headers=headers)
        assert (large.status_code, large.json()["code"]) == (507, "insufficient_storage")


def _stored(cluster: Coordinated) -> int:
    lists: list[httpx.Response] = [shard.shared_client().get("/tensors") for shard in cluster.shards.values()]
    return sum(len(found.json()["tensors"]) for found in lists)

"""Shards over TLS: a router with their authorities reads and publishes rows; a stranger is asked for none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from app.cluster.router.router_files import RouterFiles
from app.cluster.shard.pull_order import PullSource
from app.cluster.shard_map import BadShardMap
from tests.cluster.clustered import clustered
from tests.cluster.running import Placed, put, routing
from tests.cluster.shard_nodes import client_of, order_of, pull, shard
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import RAW
from tests.http.test_tls import Pair, make_pair

__all__ = ["start"]
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
KERNEL = "--kernel", "numpy"
TABLE = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)


@dataclass
class Secured:
    """Two shards with a certificate, and one that is not theirs."""

    shards: list[Server]
    pair: Pair
    other: Pair


@pytest.fixture(scope="module")
def secured(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    pair = make_pair(tmp_path_factory.mktemp("shards"), "shard")
    other = make_pair(tmp_path_factory.mktemp("other"), "other")
    with ExitStack() as stack:
        running = [stack.enter_context(start(*KERNEL, *pair.flags(), tls=pair.trusting())) for _ in range(2)]
        yield Secured(running, pair, other)


def test_a_map_of_shards_with_certificates_is_served(start: Start, secured: Secured, tmp_path: Path) -> None:
    placed = Placed(secured.shards)
    placed.add("t", TABLE)
    placed.write(tmp_path / "map.json")
    body = {"data": {"tensor": "t"}, "indices": int64([3], [0, 39, 17])}
    with routing(start, tmp_path / "map.json", *KERNEL, "--cluster-ca", str(secured.pair.certificate)) as router:
        client = router.shared_client()
        for _ in range(4):
            found = client.post("/gather", json=body)
            assert found.is_success, found.text
            assert found.json()["output"]["values"] == TABLE[[0, 39, 17]].ravel().tolist()
        assert client.get("/tensors/t/content", headers={"accept": RAW}).content == TABLE.tobytes()
    for flags in (("--cluster-ca", str(secured.other.certificate)), ()):
        with routing(start, tmp_path / "map.json", *KERNEL, *flags) as router:
            answer = router.shared_client().post("/gather", json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
            assert not flags or "certificate verify failed" in router.log_text()


def test_a_cluster_publishes_over_tls(start: Start, warmed: Path, secured: Secured, tmp_path: Path) -> None:
    flags = "--cluster-ca", str(secured.pair.certificate)
    own = secured.pair.flags()
    with clustered(start, warmed, tmp_path, 2, flags=flags, shard_flags=own, tls=secured.pair.trusting()) as cluster:
        client = cluster.router.shared_client()
        put(client, "items", TABLE)
        assert client.get("/tensors/items/content", headers={"accept": RAW}).content == TABLE.tobytes()
        assert {node for one in cluster.segments("items") for node in one.nodes} == {"s0", "s1"}


def test_a_segment_is_pulled_only_from_a_shard_that_can_be_verified(
    warmed: Path, secured: Secured, tmp_path: Path
) -> None:
    put(secured.shards[0].shared_client(), "copied.0-40", TABLE)
    address = f"127.0.0.1:{secured.shards[0].port}"
    order = order_of(TABLE, PullSource(address, "copied.0-40"))
    for name, flags, problem in (
        ("stranger", ("--cluster-ca", str(secured.other.certificate)), "certificate verify failed"),
        ("plain", (), "shard_unavailable"),
        ("trusting", ("--cluster-ca", str(secured.pair.certificate)), ""),
    ):
        with shard(warmed, tmp_path / name, *flags) as own, client_of(own) as client:
            answer = pull(client, "copied.0-40", order)
            assert answer.is_success == (not problem), answer.text
            assert problem in answer.text
            by_name = PullSource(f"localhost:{secured.shards[0].port}", "copied.0-40")
            again = pull(client, "again.0-40", replace(order, sources=(by_name,)))
            assert again.is_success == (not problem), again.text


def test_authorities_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadShardMap, match="cannot be read"):
        RouterFiles(None, None, tmp_path / "missing.pem")
    (tmp_path / "empty.pem").write_text("no certificate")
    with pytest.raises(BadShardMap, match="cannot be used"):
        RouterFiles(None, None, tmp_path / "empty.pem")
    assert RouterFiles(None, None, None).tls is None

"""A range that no shard has any more is read again from the URL that its table was imported from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.cluster.coordinator.messages import RangeKey
from app.cluster.shard.read_again import read_again
from app.cluster.shard.shard_http import ShardClient, ShardFailed
from app.imports.source_urls import AllowedSources, parse_prefix
from app.store.files.tensor_file import new_hash
from app.tensors.dtypes import DTYPES
from tests.cluster.coordinated import OPTIONS, coordinated, until
from tests.http.conftest import Start, start
from tests.http.server import Server
from tests.http.tensors import RAW, npy
from tests.imports.range_server import RangeServer, range_server
from tests.parity.items import Array
from tests.parity.messages import saved

__all__ = ["start"]

KERNEL = "--kernel", "numpy"
TABLE = np.arange(90 * 3, dtype=np.complex64).reshape(90, 3)


@pytest.fixture(scope="module")
def source() -> Iterator[RangeServer]:
    with range_server() as made:
        made.files = {
            "/tables/a.npy": npy(TABLE),
            "/tables/big.npy": npy(TABLE.astype(">c8")),
            "/tables/columns.npy": npy(np.asfortranarray(TABLE)),
            "/tables/two.safetensors": saved({"one": TABLE, "other": TABLE + 1}),
            "/tables/text": b"no table",
        }
        yield made


@pytest.fixture(scope="module")
def shard(start: Start) -> Iterator[Server]:
    with start(*KERNEL) as running:
        yield running


def rows(shard: Server, name: str) -> Array:
    answer = shard.shared_client().get(f"/tensors/{name}/content", headers={"accept": RAW})
    assert answer.is_success, answer.text
    return np.frombuffer(answer.content, TABLE.dtype).reshape(-1, 3)


@pytest.mark.parametrize(
    ("place", "table"),
    [("a.npy", TABLE), ("big.npy", TABLE), ("two.safetensors#one", TABLE), ("two.safetensors#other", TABLE + 1)],
    ids=["npy", "big endian", "first", "other"],
)
def test_rows_of_a_file(shard: Server, source: RangeServer, place: str, table: Array) -> None:
    allowed = AllowedSources([parse_prefix(f"{source.url}/tables/")])
    own = ShardClient(f"127.0.0.1:{shard.port}", None)
    for first, last in ((0, 90), (0, 1), (31, 77), (89, 90)):
        key, url = RangeKey("again", first, last), f"{source.url}/tables/{place}"
        digest = new_hash(DTYPES["complex64"], (last - first, 3))
        digest.update(table[first:last].tobytes())
        with pytest.raises(ShardFailed, match="other rows"):
            read_again(own, key, url, "0" * 64, allowed)
        assert own.stored() == []
        assert read_again(own, key, url, digest.hexdigest(), allowed) == digest.hexdigest()
        assert np.array_equal(rows(shard, f"again.{first}-{last}"), table[first:last])
        own.remove(key)


@pytest.mark.parametrize(
    "place", ["missing.npy", "columns.npy", "two.safetensors", "two.safetensors#third", "text", "../a.npy"]
)
def test_what_cannot_be_read_leaves_nothing(shard: Server, source: RangeServer, place: str) -> None:
    allowed = AllowedSources([parse_prefix(f"{source.url}/tables/")])
    own = ShardClient(f"127.0.0.1:{shard.port}", None)
    for url in (f"{source.url}/tables/{place}", f"{source.url}/{place}"):
        with pytest.raises(ShardFailed):
            read_again(own, RangeKey("again", 0, 10), url, "", allowed)
    with pytest.raises(ShardFailed):
        read_again(own, RangeKey("again", 80, 91), f"{source.url}/tables/a.npy", "", allowed)
    assert own.stored() == []


def test_an_imported_table_comes_back_when_its_only_shard_loses_it(
    start: Start, shard: Server, source: RangeServer, tmp_path: Path
) -> None:
    options = replace(OPTIONS, ranges=3, replicas=1)
    prefix = f"{source.url}/tables/"
    with coordinated(
        start, tmp_path, options=options, shards=[shard], flags=(*KERNEL, "--import-from", prefix), import_from=[prefix]
    ) as cluster:
        client = cluster.router.shared_client()
        answer = client.post("/tensors/items/import", json={"url": f"{prefix}two.safetensors", "tensor": "other"})
        assert answer.status_code == 202, answer.text
        until(lambda: client.get(answer.headers["location"]).json()["state"] == "done", "the import is done")
        own = ShardClient(f"127.0.0.1:{shard.port}", None)
        lost = own.stored()
        assert len(lost) == 3
        for one in lost:
            own.remove(one.key)
        until(lambda: sorted(own.stored()) == sorted(lost), "the ranges are there again")
        found = client.get("/tensors/items/content", headers={"accept": RAW})
        assert found.content == (TABLE + 1).tobytes()
        # A file that has other rows by now is not taken for the table.
        source.files["/tables/two.safetensors"] = saved({"one": TABLE, "other": TABLE + 2})
        own.remove(lost[0].key)
        until(lambda: _refused(cluster.router, own, lost[0].key), "the range is gone")
        assert client.get("/tensors/items/content").json()["code"] == "shard_unavailable"


def _refused(router: Server, own: ShardClient, key: RangeKey) -> bool:
    answer = router.shared_client().get("/tensors/items/content", headers={"accept": RAW})
    return answer.status_code == 503 and key not in {one.key for one in own.stored()}

"""The files that a router reads: taken when they are renewed, and kept as they were last while they cannot be used."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from ssl import SSLContext

import pytest

from app.cluster.router.router_files import RouterFiles
from app.cluster.router.sharded_service import ShardedService
from app.cluster.shard_map import ShardMap
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.held import until
from tests.http.tensors import RAW
from tests.http.test_tls import make_pair

__all__ = ["start"]
VERSION = {
    "number": 1, "content_id": "c1", "dtype": "float32", "shape": [4, 2],
    "ranges": [{"start": 0, "stop": 4, "replicas": [{"address": "127.0.0.1:1"}]}],
}  # fmt: skip


def map_text(name: str, generation: int = 1) -> str:
    return json.dumps({"generation": generation, "tables": {name: {"versions": [VERSION]}}})


def test_what_changes_data_is_refused_where_a_file_is_the_map(start: Start, tmp_path: Path) -> None:
    placed = tmp_path / "map.json"
    placed.write_text(json.dumps({**json.loads(map_text("items")), "aliases": {"old": "items@1"}}))
    body = {"indices": int64([1, 1], [0]), "updates": {"dtype": "float32", "shape": [1, 2], "values": [1, 2]}}
    with start("--cluster", str(placed)) as server, server.client() as client:
        query, raw = {"dtype": "int8", "shape": "1"}, {"content-type": RAW}
        for answer in (
            client.post("/tensors/items/scatter", json=body),
            client.post("/scatternd", json=body | {"data": {"tensor": "items"}}),
            client.put("/tensors/new", params=query, content=b"a", headers=raw),
            client.delete("/tensors/items"),
            client.put("/aliases/new", json={"tensor": "items@1"}),
            client.delete("/aliases/old"),
            client.post("/tensors/new/import", json={"url": "https://x.example/a.npy"}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (501, "not_implemented"), answer.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
def test_renewed_files_of_a_router_are_taken_each_by_itself(tmp_path: Path) -> None:
    placed, key = tmp_path / "map.json", tmp_path / "key"
    first, second = (make_pair(tmp_path / name, name).certificate for name in ("1", "2"))
    placed.write_text(map_text("first"))
    key.write_text("first\n")
    files = RouterFiles(placed, key, first)
    assert files.shard_map is not None
    assert files.tls is not None

    async def renew(files: RouterFiles, shard_map: ShardMap) -> None:
        service = ShardedService(shard_map, 1.0, files)
        routed, known = service, service.shards.get("127.0.0.1:1")
        watching = asyncio.create_task(service.watch())
        key.write_text("not one word")
        placed.write_text(map_text("second"))
        await asyncio.to_thread(until, lambda: routed.tables.shard_map.find("second") is not None)
        assert routed.fetcher.shard_map.generation == 2
        assert routed.fetcher.fields == b"authorization: Bearer first\r\n"
        second.replace(first)
        key.write_text("second")
        await asyncio.to_thread(until, lambda: b"second" in routed.fetcher.fields and known.tls is not files.tls)
        authorities = [known.tls, routed.shards.get("127.0.0.1:2").tls]
        watching.cancel()
        await service.close()
        assert all(one is not None and names(one) == {"2"} for one in authorities)

    asyncio.run(asyncio.wait_for(renew(files, files.shard_map), 20))


def names(context: SSLContext) -> set[str]:
    """The names of the authorities that a context takes."""
    return {str(part[0][1]) for one in context.get_ca_certs() for part in one["subject"]}

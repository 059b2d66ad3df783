"""An upload to shards that fail: others take their place if there are any, and nothing becomes current otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Change, Node, Options
from app.cluster.router.running_uploads import RunningUploads
from app.cluster.router.segment_writer import ShardAccess
from app.cluster.router.sharded_upload import ShardedUpload, Spool, SpooledUpload
from app.cluster.router.version_writer import BytesBefore, VersionWriter
from app.errors import GatherError
from app.store import LocalStore
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from tests.cluster.clustered import Clustered, catalogue_client, clustered, registered, routing
from tests.cluster.databases import running_database
from tests.cluster.waiting import until
from tests.free_port import free_port
from tests.http.conftest import Start, start
from tests.http.tensors import RAW

__all__ = ["start"]

LIMITS = Limits(rank=8, dimension=2**31, elements=2**31, output_bytes=2**31, string_bytes=2**20, features=8)
SPEC = UploadSpec("t", DTYPES["int32"], (4,))
TABLE = np.arange(300_000 * 8, dtype=np.int32).reshape(300_000, 8)
"""More than is read of a body at once."""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogueClient]:
    """One shard, at an address where nobody listens."""
    with ExitStack() as stack:
        database = stack.enter_context(running_database(tmp_path_factory.mktemp("database")))
        stack.enter_context(registered(database, "a", Node(f"127.0.0.1:{free_port()}", 1000)))
        client = stack.enter_context(catalogue_client(database))
        client.transact(lambda _: Change({"options": Options(ranges=1, replicas=1)}))
        yield client


def upload(client: CatalogueClient, spool: Spool, spec: UploadSpec = SPEC) -> ShardedUpload:
    def begin(bytes_before: BytesBefore) -> VersionWriter:
        return VersionWriter(
            client, ShardAccess(None), "t", spec.dtype, spec.shape, bytes_before, RunningUploads(client)
        )

    return SpooledUpload(spec, LIMITS, begin, spool)


def test_what_was_written_here_first_is_removed_whether_it_is_sent_or_not(
    catalogue: CatalogueClient, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path, LIMITS)
    store.open()
    large = UploadSpec("t", DTYPES["int32"], (1000,))
    try:
        for spec in (SPEC, large):
            one = upload(catalogue, store.upload, spec)
            one.write(np.arange(spec.shape[0], dtype=np.int32).tobytes())
            assert len(list((tmp_path / "incoming").iterdir())) == 1
            with pytest.raises(GatherError):
                one.finish()
            one.abandon()
            assert list((tmp_path / "incoming").iterdir()) == []
        early = upload(catalogue, store.upload)
        early.abandon()
        assert list((tmp_path / "incoming").iterdir()) == []
    finally:
        store.close()


# Shards that are lost midway


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    flags = "--max-upload-bytes", "1000000000"
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster"), 4, flags=flags) as running:
        yield running


def put_slowly(cluster: Clustered, name: str, midway: Callable[[Sequence[str]], None]) -> httpx.Response:
    """Put TABLE, and call `midway` with the shards of its first segment when half of its bytes are sent."""

    def pieces() -> Iterator[bytes]:
        raw = TABLE.tobytes()
        yield raw[: len(raw) // 2]
        until(lambda: cluster.catalogue.uploads, "the upload has begun")
        (record,) = cluster.catalogue.uploads.values()
        midway(record.segments[0].nodes)
        yield raw[len(raw) // 2 :]

    query = {"dtype": "int32", "shape": "300000,8"}
    headers = {"content-type": RAW, "content-length": str(TABLE.nbytes)}
    with cluster.router.client() as client:
        return client.put(f"/tensors/{name}", params=query, content=pieces(), headers=headers)


def check_published(cluster: Clustered, name: str, answer: httpx.Response, lost: str) -> None:
    """Others have what the lost shard was to have. What it had whole before, the reconciler has copied."""
    assert answer.status_code == 201, answer.text
    assert all(len(set(one.nodes)) == 2 for one in cluster.segments(name))
    until(lambda: all(lost not in one.nodes for one in cluster.segments(name)), "others have its segments")
    client = cluster.router.shared_client()
    assert client.get(f"/tensors/{name}/content", headers={"accept": RAW}).content == TABLE.tobytes()


@pytest.mark.slow
def test_another_shard_takes_the_place_of_one_that_hangs_midway(cluster: Clustered) -> None:
    """Its machine is gone: it answers nothing, and its lease ends. The other replica waits meanwhile."""
    lost = ""

    def stop(nodes: Sequence[str]) -> None:
        nonlocal lost
        lost = nodes[0]
        os.killpg(cluster.shards[lost].process.pid, signal.SIGSTOP)

    try:
        check_published(cluster, "hangs", put_slowly(cluster, "hangs", stop), lost)
    finally:
        os.killpg(cluster.shards[lost].process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_another_shard_takes_the_place_of_one_that_is_killed_midway(cluster: Clustered) -> None:
    lost = ""

    def kill(nodes: Sequence[str]) -> None:
        nonlocal lost
        lost = nodes[0]
        cluster.kill(lost)

    check_published(cluster, "killed", put_slowly(cluster, "killed", kill), lost)
    cluster.begin("s4")


@pytest.mark.slow
def test_what_a_router_that_is_killed_midway_has_written_is_dropped(start: Start, cluster: Clustered) -> None:
    def cut(_: Sequence[str]) -> None:
        os.killpg(other.process.pid, signal.SIGKILL)

    with suppress(AssertionError), routing(start, cluster.database) as other:  # it does not end well
        with pytest.raises(httpx.TransportError):
            put_slowly(replace(cluster, router=other), "cut", cut)
        other.process.wait()
    until(lambda: not cluster.catalogue.uploads, "its lease ends")
    until(lambda: cluster.stored() == cluster.wanted(), "what was written is dropped")


@pytest.mark.slow
def test_an_upload_fails_whose_segment_loses_all_its_shards_and_leaves_nothing(cluster: Clustered) -> None:
    """The last test of its cluster: other tables have lost rows."""

    def kill(nodes: Sequence[str]) -> None:
        for node in nodes:
            cluster.kill(node)

    answer = put_slowly(cluster, "fails", kill)
    assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
    until(lambda: not cluster.catalogue.uploads, "the upload is given up")
    assert "fails" not in cluster.catalogue.tables
    until(lambda: cluster.stored() <= cluster.wanted(), "what was written is dropped")
    assert cluster.router.shared_client().get("/tensors/fails").status_code == 404

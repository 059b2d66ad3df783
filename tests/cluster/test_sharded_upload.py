"""An upload to shards that fail: others take their place if there are any, and nothing becomes current otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.catalogue.conditions import ALWAYS
from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Catalogue, Change, Node, Options, TooLarge
from app.cluster.router.running_uploads import RunningUploads
from app.cluster.router.segment_writer import ShardAccess
from app.cluster.router.sharded_upload import ShardedUpload, Spool, SpooledUpload, StreamedUpload
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


def upload(client: CatalogueClient, spool: Spool | None = None, spec: UploadSpec = SPEC) -> ShardedUpload:
    def begin(bytes_before: BytesBefore) -> VersionWriter:
        return VersionWriter(
            client, ShardAccess(None), "t", spec.dtype, spec.shape, bytes_before, RunningUploads(client)
        )

    if spool is None:
        return StreamedUpload(spec, LIMITS, begin)
    return SpooledUpload(spec, LIMITS, begin, spool)


def test_a_shard_that_is_not_there_makes_the_table_unavailable(catalogue: CatalogueClient) -> None:
    one = upload(catalogue)

    def send() -> None:
        one.write(np.arange(4, dtype=np.int32).tobytes())  # raises already if the connection is refused early
        one.finish()

    with pytest.raises(GatherError, match="no shard took") as error:
        send()
    assert (error.value.code, error.value.retry_after) == ("shard_unavailable", 1)
    assert len(catalogue.catalogue.uploads) == 1
    one.abandon()
    until(lambda: not catalogue.refresh().uploads, "the upload is given up")


def test_what_has_no_room_is_refused(catalogue: CatalogueClient) -> None:
    with pytest.raises(GatherError, match="room") as error:
        upload(catalogue, spec=UploadSpec("t", DTYPES["int32"], (1000,)))
    assert error.value.code == "insufficient_storage"


def test_an_upload_that_was_given_up_meanwhile_is_not_published(catalogue: CatalogueClient) -> None:
    one = upload(catalogue, spec=UploadSpec("t", DTYPES["int32"], (0,)))
    one.finish()
    assert one.writer is not None
    content = one.writer.content_id
    catalogue.transact(lambda found: transitions.end_upload(found, content))
    with pytest.raises(GatherError, match="given up") as error:
        one.writer.publish(ALWAYS, "", 1, "", "")
    assert error.value.code == "shard_unavailable"


def test_a_change_that_is_too_large_for_etcd_is_refused(
    catalogue: CatalogueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(*_: object) -> bool:
        raise TooLarge("request is too large")

    monkeypatch.setattr(catalogue.database, "commit", commit)
    with pytest.raises(GatherError) as error:
        upload(catalogue)
    assert error.value.code == "limit_exceeded"


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


@pytest.fixture
def cluster(start: Start, warmed: Path, tmp_path: Path) -> Iterator[Clustered]:
    with clustered(start, warmed, tmp_path, 4, flags=("--max-upload-bytes", "1000000000")) as running:
        yield running


def put_slowly(cluster: Clustered, midway: Callable[[Catalogue], None]) -> httpx.Response:
    """Put TABLE, and call `midway` when half of its bytes are sent."""

    def pieces() -> Iterator[bytes]:
        raw = TABLE.tobytes()
        yield raw[: len(raw) // 2]
        until(lambda: cluster.catalogue.uploads, "the upload has begun")
        midway(cluster.catalogue)
        yield raw[len(raw) // 2 :]

    query = {"dtype": "int32", "shape": "300000,8"}
    headers = {"content-type": RAW, "content-length": str(TABLE.nbytes)}
    with cluster.router.client() as client:
        return client.put("/tensors/items", params=query, content=pieces(), headers=headers)


def check_published(cluster: Clustered, answer: httpx.Response, lost: str) -> None:
    """Others have what the lost shard was to have. What it had whole before, the reconciler has copied."""
    assert answer.status_code == 201, answer.text
    assert all(len(set(one.nodes)) == 2 for one in cluster.segments("items"))
    until(lambda: all(lost not in one.nodes for one in cluster.segments("items")), "others have its segments")
    client = cluster.router.shared_client()
    assert client.get("/tensors/items/content", headers={"accept": RAW}).content == TABLE.tobytes()


@pytest.mark.slow
def test_another_shard_takes_the_place_of_one_that_is_killed_midway(cluster: Clustered) -> None:
    lost = ""

    def kill(catalogue: Catalogue) -> None:
        nonlocal lost
        (record,) = catalogue.uploads.values()
        lost = record.segments[0].nodes[0]
        cluster.kill(lost)

    check_published(cluster, put_slowly(cluster, kill), lost)


@pytest.mark.slow
def test_another_shard_takes_the_place_of_one_that_hangs_midway(cluster: Clustered) -> None:
    """Its machine is gone: it answers nothing, and its lease ends. The other replica waits meanwhile."""
    lost = ""

    def stop(catalogue: Catalogue) -> None:
        nonlocal lost
        (record,) = catalogue.uploads.values()
        lost = record.segments[0].nodes[0]
        os.killpg(cluster.shards[lost].process.pid, signal.SIGSTOP)

    try:
        check_published(cluster, put_slowly(cluster, stop), lost)
    finally:
        os.killpg(cluster.shards[lost].process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_an_upload_fails_whose_segment_loses_all_its_shards_and_leaves_nothing(cluster: Clustered) -> None:
    def kill(catalogue: Catalogue) -> None:
        (record,) = catalogue.uploads.values()
        for node in record.segments[0].nodes:
            cluster.kill(node)

    answer = put_slowly(cluster, kill)
    assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
    until(lambda: not cluster.catalogue.uploads, "the upload is given up")
    assert cluster.catalogue.tables == {}
    until(lambda: not cluster.stored(), "what was written is dropped")
    assert cluster.router.shared_client().get("/tensors/items").status_code == 404


@pytest.mark.slow
def test_what_a_router_that_is_killed_midway_has_written_is_dropped(start: Start, warmed: Path, tmp_path: Path) -> None:
    with clustered(start, warmed, tmp_path, 2) as cluster:
        database = cluster.database

        def cut(_: Catalogue) -> None:
            os.killpg(other.process.pid, signal.SIGKILL)

        with suppress(AssertionError), routing(start, database) as other:  # it does not end well
            with pytest.raises(httpx.TransportError):
                put_slowly(replace(cluster, router=other), cut)
            other.process.wait()
        until(lambda: not cluster.catalogue.uploads, "its lease ends")
        until(lambda: not cluster.stored(), "what was written is dropped")

"""An upload to shards that fail: what its caller is told, and that nothing becomes current."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from app.cluster.coordinator.coordinator_client import CoordinatorClient, StaleMap
from app.cluster.coordinator.message_json import message_from_json, message_to_json
from app.cluster.coordinator.messages import Message, Placed, Publish, RangeKey, Refused, Stamp, Target
from app.cluster.router.sharded_upload import ShardedUpload, Spool, SpooledUpload, StreamedUpload
from app.cluster.router.version_writer import BytesBefore, VersionSize, VersionWriter
from app.errors import GatherError
from app.store import LocalStore
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits

LIMITS = Limits(rank=8, dimension=2**31, elements=2**31, output_bytes=2**31, string_bytes=2**20, features=8)
SPEC = UploadSpec("t", DTYPES["int32"], (4,))


class Coordinator:
    """Answers each `Publish` with what `answer` makes of it."""

    def __init__(self, answer: Callable[[Publish], list[Message]]) -> None:
        self.answer = answer
        self.asked = 0

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        del sender, wait_s
        self.asked += len(texts)
        found = [message_from_json(text) for text in texts]
        return [
            message_to_json(one) for message in found if isinstance(message, Publish) for one in self.answer(message)
        ]

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{found.getsockname()[1]}"


def upload(coordinator: Coordinator, spool: Spool | None = None) -> ShardedUpload:
    client = CoordinatorClient(coordinator, lambda _: None)

    def begin(size: VersionSize, bytes_before: BytesBefore) -> VersionWriter:
        asked = Publish("content", "t", "int32", (4,), size.row, 1, 0, size=size.total)
        return VersionWriter(DTYPES["int32"], (4,), size, bytes_before, lambda *_: client.publish(asked), None)

    if spool is None:
        return StreamedUpload(SPEC, LIMITS, begin)
    return SpooledUpload(SPEC, LIMITS, begin, spool)


def placed(address: str, node: str = "a") -> Callable[[Publish], list[Message]]:
    def answer(asked: Publish) -> list[Message]:
        key = RangeKey(asked.content_id, 0, 4)
        return [Placed(asked.content_id, (Target(key, node, address, Stamp(1, 1)),))]

    return answer


def refused(code: str, detail: str) -> Callable[[Publish], list[Message]]:
    return lambda asked: [Refused(asked.content_id, code, detail)]


def test_a_shard_that_is_not_there_makes_the_table_unavailable(refusing: str) -> None:
    one = upload(Coordinator(placed(refusing)))
    with pytest.raises(GatherError, match="could not be written") as error:
        one.write(np.arange(4, dtype=np.int32).tobytes())
    assert (error.value.code, error.value.retry_after) == ("shard_unavailable", 1)
    one.abandon()


def test_what_the_coordinator_refuses_is_the_answer() -> None:
    with pytest.raises(GatherError, match="no room") as error:
        upload(Coordinator(refused("insufficient_storage", "no room")))
    assert error.value.code == "insufficient_storage"
    with pytest.raises(StaleMap):
        upload(Coordinator(refused("stale_map", "later")))


def test_rows_that_would_go_elsewhere_after_a_restart_are_not_written(
    refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cluster.coordinator.coordinator_client.ASK_AGAIN_S", 0.05)
    coordinator = Coordinator(placed(refusing))
    one = upload(coordinator)
    assert one.writer is not None
    publication = one.writer.publication
    assert publication is not None
    for later in (placed(refusing, "b"), refused("stale_map", "later")):
        coordinator.answer = later
        before = coordinator.asked
        while coordinator.asked < before + 2 and publication._request.outcome is None:
            time.sleep(0.01)
        with pytest.raises(GatherError) as error:
            one.write(b"\0" * 4)
        assert error.value.code == "shard_unavailable"
    one.abandon()


def test_a_coordinator_that_is_silent_is_waited_for_and_then_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cluster.coordinator.coordinator_client.ANSWER_S", 0.3)
    with pytest.raises(GatherError, match="does not answer") as error:
        upload(Coordinator(lambda _: []))
    assert error.value.code == "shard_unavailable"


def test_what_was_written_here_first_is_removed_whether_it_is_sent_or_not(tmp_path: Path, refusing: str) -> None:
    store = LocalStore(tmp_path, LIMITS)
    store.open()
    try:
        for answer in (refused("insufficient_storage", "no room"), placed(refusing)):
            one = upload(Coordinator(answer), store.upload)
            one.write(np.arange(4, dtype=np.int32).tobytes())
            assert len(list((tmp_path / "incoming").iterdir())) == 1
            with pytest.raises(GatherError):
                one.finish()
            one.abandon()
            assert list((tmp_path / "incoming").iterdir()) == []
        early = upload(Coordinator(placed(refusing)), store.upload)
        early.abandon()
        assert list((tmp_path / "incoming").iterdir()) == []
    finally:
        store.close()

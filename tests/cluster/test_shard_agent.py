"""What a shard's agent keeps on its disk, and what it makes of another shard that breaks off."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from app.cluster.coordinator.messages import RangeKey
from app.cluster.shard.shard_agent import next_start
from app.cluster.shard.shard_http import ShardClient, ShardFailed

KEY = RangeKey("c", 0, 5)


def test_the_number_of_a_start_rises_also_where_the_clock_goes_backwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator heeds no inventory of an earlier start: the machine would be lost to it."""
    path = tmp_path / "started"
    first = next_start(path)
    assert first >= time.time_ns() - 10**10
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    assert next_start(path) == first + 1
    assert next_start(path) == first + 2
    path.write_bytes(b"no number")
    assert next_start(path) == 5


@contextmanager
def serving(do: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of what does something with one connection, which must come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                do(connection)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)
        assert not thread.is_alive()


def test_a_copy_from_a_shard_that_breaks_off_ends_at_once() -> None:
    def source(connection: socket.socket) -> None:
        connection.recv(10000)
        head = b"HTTP/1.1 200 OK\r\nX-Gathernd-Dtype: float32\r\nX-Gathernd-Shape: 5\r\nContent-Length: 20\r\n\r\n"
        connection.sendall(head + b"x" * 12)

    def target(connection: socket.socket) -> None:
        while connection.recv(10000):
            pass

    broken = pytest.raises(ShardFailed, match="broke off 8 of 20 bytes")
    with serving(source) as at, serving(target) as into, broken:
        ShardClient(into, None, 5.0).copy_from(ShardClient(at, None, 5.0), KEY)


@pytest.mark.parametrize("body", [b"[1]", b"{", b"7"])
def test_a_list_that_is_no_json_object_is_a_failure(body: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(10000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with serving(answer) as at, pytest.raises(ShardFailed, match="no JSON object"):
        ShardClient(at, None, 5.0).stored()

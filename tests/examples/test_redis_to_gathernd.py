"""clients/python/examples/redis_to_gathernd.py copies what is in a real Redis, and refuses what makes no table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from gathernd import Client
from tests.for_each import for_each
from tests.http.server import Server, run_program, serving
from tests.needs import ROOT, skip_without

redis = pytest.importorskip("redis", reason="needs the package redis, of the group dev")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Redis with 2,500 rows as byte strings, and as many as hashes."""
    skip_without(**{"redis-server": "redis-server"})
    folder = tmp_path_factory.mktemp("redis")
    path = folder / "redis.sock"
    with subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""], cwd=folder
    ) as process:
        end = monotonic() + 30
        while not path.exists():
            assert monotonic() < end
            sleep(0.05)
        with redis.Redis(unix_socket_path=str(path)) as client:
            client.mset({f"row:{number}:v1": (np.arange(4.0) + number).tobytes() for number in range(2500)})
            pipeline = client.pipeline(transaction=False)
            for number in range(2500):
                pipeline.hset(f"user:{number}", mapping={"age": number % 90, "spent": number / 4, "name": "x"})
            pipeline.execute()
            yield client
        process.terminate()


@pytest.fixture(scope="module")
def server(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(warmed, tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
        for info in list(client.tensors()):
            client.delete(info.name)


def copied(store: Any, server: Server, *arguments: str) -> str:
    """What the script prints, or the message with which it ends."""
    socket = store.connection_pool.connection_kwargs["path"]
    variables = {**os.environ, "GATHERND_URL": server.url, "REDIS_URL": f"unix://{socket}"}
    script = str(ROOT / "clients/python/examples/redis_to_gathernd.py")
    done = run_program([sys.executable, script, *arguments], ROOT, variables)
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) == (not done.stderr)
    return done.stdout + done.stderr


def test_byte_strings_become_rows(store: Any, server: Server, client: Client) -> None:
    said = copied(store, server, "row:*:v1", "rows", "--dtype", "float64", "--integers")
    assert said == "2500 rows of 4 float64 are in rows; 256 were compared\n"
    wanted = np.array([2499, 0, 1000])
    np.testing.assert_array_equal(client.gather("rows", keys=wanted), np.arange(4.0) + wanted[:, None])


def test_fields_of_hashes_become_columns(store: Any, server: Server, client: Client) -> None:
    copied(store, server, "user:*", "users", "--fields", "spent,age")
    assert client.metadata("users").shape == (2500, 2)
    np.testing.assert_array_equal(client.gather("users", keys=["7", "2400"]), [[1.75, 7], [600, 60]])


@for_each(
    ("arguments", "said"),
    [
        (["row:*", "t", "--fields", "age"], "Redis has no hashes row:*"),
        (["user:*", "t", "--fields", "age,name"], "could not convert string to float"),
        (["row:*", "t", "--integers"], "invalid literal for int"),
        (["odd:*", "t"], "odd:b has 2 items, odd:a has 1"),
        (["twice:*", "t", "--integers"], "keys_not_unique"),
    ],
)
def test_what_makes_no_table_is_said(
    store: Any, server: Server, client: Client, arguments: list[str], said: str
) -> None:
    store.mset({"odd:a": bytes(4), "odd:b": bytes(8), "twice:1": bytes(4), "twice:01": bytes(4)})
    assert said in copied(store, server, *arguments)
    assert list(client.tensors()) == []

"""Redis with the rows of a table, one key each: `row:` and the row's number in 12 digits, as redis-benchmark asks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from numpy.typing import NDArray

from benchmarks import common


class Redis(NamedTuple):
    """A running server: its port and its process."""

    port: int
    process: int


class Mgets(NamedTuple):
    """MGETs a second, and processor seconds of the server for each."""

    rate: float
    cost: float


def key_of(row: int) -> str:
    """The key of a row."""
    return f"row:{row:012}"


@contextmanager
def redis_server(table: NDArray[Any]) -> Iterator[Redis | None]:
    """Serve the rows of `table`. Yields None, and says why, if redis-server or the package redis is missing."""
    if not shutil.which("redis-server") or not find_spec("redis"):
        print("Redis is left out: it needs the Debian package redis and the Python package redis")
        yield None
        return
    library: Any = import_module("redis")
    port = common.free_port()
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--io-threads", "2"]
        with subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL) as process:
            try:
                with library.Redis(port=port) as client:
                    _wait(client, library.ConnectionError)
                    for first in range(0, len(table), 10_000):
                        rows = range(first, min(first + 10_000, len(table)))
                        client.mset({key_of(row): table[row].tobytes() for row in rows})
                yield Redis(port, process.pid)
            finally:
                process.terminate()


def mgets(redis: Redis, rows: int, pick: int, seconds: float, connections: int = 16) -> Mgets:
    """Drive MGETs of `pick` random rows with redis-benchmark for at least half of `seconds`."""
    sent = 2000
    while True:
        command = ["redis-benchmark", "-p", str(redis.port), "-c", str(connections), "-n", str(sent), "-r", str(rows)]
        asked = ["--csv", "MGET", *["row:__rand_int__"] * pick]
        begun, spent = time.perf_counter(), common.cpu_seconds(redis.process)
        done = subprocess.run([*command, *asked], capture_output=True, text=True, check=True)
        taken, spent = time.perf_counter() - begun, common.cpu_seconds(redis.process) - spent
        if taken >= seconds / 2:
            return Mgets(float(done.stdout.splitlines()[-1].split('","')[1].strip('"')), spent / sent)
        sent = int(sent * min(10, 1.2 * seconds / taken))


def _wait(client: Any, error: type[Exception]) -> None:
    for _ in range(200):
        try:
            client.ping()
        except error:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("Redis does not answer")

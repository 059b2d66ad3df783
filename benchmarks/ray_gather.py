"""Ray doing what a shard does: a program of its own, which prints rates; `benchmarks/cluster.py` runs it.

PYTHON -m benchmarks.ray_gather actor|serve [--seconds 8]

An actor, or a deployment of Ray Serve with one replica, holds the table of 200,000 rows of 64 float32 and gathers 256
of them: indices and rows travel as NumPy arrays by Ray, as bytes by Ray Serve's HTTP. PYTHON is that of an environment
with Ray (`pip install "ray[serve]" numpy`), which no other part of this project needs. It runs in a network namespace
that has loopback alone (`benchmarks/cluster.py` makes it), since Ray listens on the machine's outer address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from http.client import HTTPConnection
from threading import Thread
from typing import Any

import numpy as np

ROWS, WIDTH, ASKED = 200_000, 64, 256
PORT = 8123


def table() -> Any:
    """The table."""
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)


class Table:
    """The actor: gathers rows of the table that it holds."""

    def __init__(self) -> None:
        self.table = table()

    def gather(self, indices: Any) -> Any:
        """Rows of the table."""
        return self.table[indices]


class Served:
    """The deployment of Ray Serve: the body of a request is int64, that of an answer float32."""

    def __init__(self) -> None:
        self.table = table()

    async def __call__(self, request: Any) -> Any:
        """Rows of the table."""
        from starlette.responses import Response  # noqa: PLC0415

        indices = np.frombuffer(await request.body(), np.int64)
        return Response(self.table[indices].tobytes(), media_type="application/octet-stream")


def indices() -> list[Any]:
    """What is asked for, by turns."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, ROWS, ASKED) for _ in range(64)]


def actor_rates(seconds: float) -> dict[str, float]:
    """Calls of an actor a second, one at a time and 16 at a time."""
    import ray  # noqa: PLC0415

    actor = ray.remote(Table).options(max_concurrency=4).remote()
    wanted, asked = table(), indices()
    assert (ray.get(actor.gather.remote(asked[0])) == wanted[asked[0]]).all()

    async def many(width: int, until: float) -> int:
        done = 0

        async def one(seed: int) -> None:
            nonlocal done
            number = seed
            while time.perf_counter() < until:
                number += 1
                await actor.gather.remote(asked[number % 64])
                done += 1

        await asyncio.gather(*(one(seed) for seed in range(width)))
        return done

    found = {}
    for width in (1, 16):
        asyncio.run(many(width, time.perf_counter() + 1))
        begun = time.perf_counter()
        done = asyncio.run(many(width, begun + seconds))
        found[str(width)] = done / (time.perf_counter() - begun)
    return found


def serve_rates(seconds: float) -> dict[str, float]:
    """Requests of Ray Serve a second, on 1 connection and on 16."""
    from ray import serve  # noqa: PLC0415

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(serve.deployment(Served, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=64).bind())
    wanted, asked = table(), indices()

    def ask(seed: int, until: float, counts: list[int]) -> None:
        connection = HTTPConnection("127.0.0.1", PORT)
        done = 0
        while time.perf_counter() < until:
            number = (seed + done) % 64
            connection.request("POST", "/", asked[number].tobytes())
            answer = connection.getresponse()
            rows = answer.read()
            assert answer.status == 200
            if done == 0:
                assert rows == wanted[asked[number]].tobytes()
            done += 1
        counts.append(done)

    found = {}
    for width in (1, 16):
        for duration in (1.0, seconds):
            counts: list[int] = []
            begun = time.perf_counter()
            threads = [Thread(target=ask, args=(seed, begun + duration, counts)) for seed in range(width)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(counts) == width
            found[str(width)] = sum(counts) / (time.perf_counter() - begun)
    return found


def main() -> None:
    """Print the rates as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=("actor", "serve"))
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    import ray  # noqa: PLC0415

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=200 * 2**20,
             log_to_driver=False, logging_level="ERROR")  # fmt: skip
    rates = actor_rates(given.seconds) if given.contender == "actor" else serve_rates(given.seconds)
    print(json.dumps(rates), flush=True)
    sys.stdout.flush()
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Ray doing what a shard does, or what a cluster does: a program of its own, which prints rates.

PYTHON -m benchmarks.peers.ray_gather actor|serve [--ranges 4] [--seconds 8]

Actors, or deployments of Ray Serve with one replica each, hold the table of 200,000 rows of 64 float32 in so many
ranges of rows, and 256 rows are gathered. With several ranges the caller, or with Ray Serve a deployment in front,
splits the indices, asks the ranges side by side and puts the rows in order. Indices and rows travel as NumPy arrays by
Ray, as bytes by Ray Serve's HTTP. PYTHON is that of an environment with Ray (`pip install "ray[serve]" numpy`), which
no other part of this project needs. `cluster lookups` runs it in a network namespace that has loopback alone,
since Ray listens on the machine's outer address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from itertools import pairwise
from threading import Thread
from typing import Any

import numpy as np

ROWS, WIDTH, ASKED = 200_000, 64, 256
PORT = 8123


def table() -> Any:
    """The table."""
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)


class Range:
    """An actor, or a deployment: gathers rows of the range of the table that it holds."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.rows = start, table()[start:stop]

    def gather(self, indices: Any) -> Any:
        """Rows of the range, by their numbers in the table."""
        return self.rows[indices - self.start]


def starts(ranges: int) -> Any:
    """The first rows of the ranges."""
    return np.arange(ranges + 1) * ROWS // ranges


async def gather(indices: Any, ranges: list[Callable[[Any], Any]]) -> Any:
    """The rows, from whoever holds them."""
    if len(ranges) == 1:
        return await ranges[0](indices)
    owners = np.searchsorted(starts(len(ranges)), indices, "right") - 1
    places = [np.flatnonzero(owners == number) for number in range(len(ranges))]
    asked = [(place, ask) for place, ask in zip(places, ranges, strict=True) if len(place)]
    found = await asyncio.gather(*(ask(indices[place]) for place, ask in asked))
    out = np.empty((len(indices), WIDTH), np.float32)
    for (place, _), rows in zip(asked, found, strict=True):
        out[place] = rows
    return out


class Front:
    """The deployment of Ray Serve that HTTP reaches: the body of a request is int64, that of an answer float32."""

    def __init__(self, *ranges: Any) -> None:
        self.ranges = [each.gather.remote for each in ranges]

    async def __call__(self, request: Any) -> Any:
        """Rows of the table."""
        from starlette.responses import Response  # noqa: PLC0415

        rows = await gather(np.frombuffer(await request.body(), np.int64), self.ranges)
        return Response(rows.tobytes(), media_type="application/octet-stream")


class Whole(Range):
    """The same without anybody in front, for a table of one range."""

    async def __call__(self, request: Any) -> Any:
        """Rows of the table."""
        from starlette.responses import Response  # noqa: PLC0415

        rows = self.gather(np.frombuffer(await request.body(), np.int64))
        return Response(rows.tobytes(), media_type="application/octet-stream")


def indices() -> list[Any]:
    """What is asked for, by turns."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, ROWS, ASKED) for _ in range(64)]


def actor_rates(seconds: float, ranges: int) -> dict[str, float]:
    """Gathers by calls of actors a second, one at a time and 16 at a time."""
    import ray  # noqa: PLC0415

    bounds = starts(ranges)
    kind = ray.remote(Range).options(max_concurrency=4, num_cpus=0)
    actors = [kind.remote(int(start), int(stop)) for start, stop in pairwise(bounds)]
    calls = [actor.gather.remote for actor in actors]
    wanted, asked = table(), indices()
    assert (asyncio.run(gather(asked[0], calls)) == wanted[asked[0]]).all()

    async def many(width: int, until: float) -> int:
        done = 0

        async def one(seed: int) -> None:
            nonlocal done
            number = seed
            while time.perf_counter() < until:
                number += 1
                await gather(asked[number % 64], calls)
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


def serve_rates(seconds: float, ranges: int) -> dict[str, float]:
    """Requests of Ray Serve a second, on 1 connection and on 16."""
    from ray import serve  # noqa: PLC0415

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})

    def deployment(kind: Any, name: str) -> Any:
        return serve.deployment(kind, name=name, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=64)

    if ranges == 1:
        serve.run(deployment(Whole, "whole").bind(0, ROWS))
    else:
        pairs = pairwise(starts(ranges))
        held = [deployment(Range, f"range{start}").bind(int(start), int(stop)) for start, stop in pairs]
        serve.run(deployment(Front, "front").bind(*held))
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
    parser.add_argument("--ranges", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    import ray  # noqa: PLC0415

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=200 * 2**20,
             log_to_driver=False, logging_level="ERROR")  # fmt: skip
    rates = (actor_rates if given.contender == "actor" else serve_rates)(given.seconds, given.ranges)
    print(json.dumps(rates), flush=True)
    sys.stdout.flush()
    ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Lookups in a cluster beside one machine: their latency, and the processor time of router and shards.

One machine and a cluster have the same table of 200,000 rows of 64 float32. Lookups of 256 rows in the binary format
come one at a time, in turns, then 16 at a time. With --ray, the Python of an environment with ray[serve], the same
lookup follows by calls of Ray's actors and as a request to Ray Serve: of the whole table, and of one in ranges.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from safetensors.numpy import save

from benchmarks import common, work
from benchmarks.work import PICK, ROWS, SAFETENSORS, WIDTH

BINARY = SAFETENSORS["Content-Type"]
PATH = "/gathernd?tensor=items"
GOAL_RATIO, GOAL_MS = 6.0, 1.5


def body_of(rows: Any) -> bytes:
    """A safetensors body of indices."""
    return save({"indices": np.ascontiguousarray(rows, np.int64).reshape(-1, 1)})


def header_of(body: bytes) -> bytes:
    """The header of a request."""
    return (
        f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {BINARY}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()


def write_map(path: Path, ports: list[int]) -> None:
    """The map of `items`, one range on each of `ports`."""
    stops = [ROWS * (number + 1) // len(ports) for number in range(len(ports))]
    ranges = [
        {"start": start, "stop": stop, "tensor": f"r{start}@1", "replicas": [{"address": f"127.0.0.1:{port}"}]}
        for start, stop, port in zip([0, *stops], stops, ports, strict=False)
    ]
    version = {
        "number": 1, "content_id": "bench", "dtype": "float32", "shape": [ROWS, WIDTH], "ranges": ranges,
    }  # fmt: skip
    path.write_text(json.dumps({"tables": {"items": {"versions": [version]}}}))


async def look_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> float:
    """Look rows up on an open connection: the milliseconds until all of them have come."""
    begun = time.perf_counter()
    writer.write(header_of(body) + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200"), answer
    at = answer.index(b"content-length: ") + 16
    await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
    return (time.perf_counter() - begun) * 1e3


def lookups(port: int, bodies: list[bytes], count: int) -> tuple[list[float], float]:
    """The milliseconds of `count` lookups, one after another, and the service's processor time of each, in µs."""
    before = common.processor_time(port)
    times: list[float] = []

    async def run() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times.extend([await look_up(reader, writer, bodies[number % len(bodies)]) for number in range(count)])
        writer.close()

    asyncio.run(run())
    return times, (common.processor_time(port) - before) / count * 1e6


RAY_SECONDS = 6.0
FULL = 16
NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def count_answers(port: int, bodies: list[bytes], width: int, seconds: float) -> tuple[int, float]:
    """Lookups that are answered on `width` connections of one process, as Ray is asked, and the seconds they take."""

    async def ask(seed: int, until: float) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        done = 0
        while time.perf_counter() < until:
            await look_up(reader, writer, bodies[(seed + done) % len(bodies)])
            done += 1
        writer.close()
        return done

    async def run() -> tuple[int, float]:
        begun = time.perf_counter()
        done = await asyncio.gather(*(ask(seed, begun + seconds) for seed in range(width)))
        return sum(done), time.perf_counter() - begun

    return asyncio.run(run())


def rate(port: int, bodies: list[bytes], width: int) -> float:
    """Lookups a second, `width` at a time."""
    count_answers(port, bodies, width, 1.0)
    count, seconds = count_answers(port, bodies, width, RAY_SECONDS)
    return count / seconds


def at_full_load(name: str, port: int, shards: list[int], bodies: list[bytes], duration: float) -> str:
    """A line: lookups a second, `FULL` at a time, and the processor time of each in the service and in a shard."""
    count_answers(port, bodies, FULL, 1.0)
    before = [common.processor_time(one) for one in (port, *shards)]
    count, seconds = count_answers(port, bodies, FULL, duration)
    spent = [(common.processor_time(one) - was) / count * 1e6 for one, was in zip((port, *shards), before, strict=True)]
    of_shard = f"{sum(spent[1:]) / len(shards):15.0f}" if shards else ""
    return f"{name:14}{count / seconds:12,.0f}{spent[0]:12.0f}{of_shard}"


def rate_of_ray(python: str, contender: str, ranges: int, folder: Path) -> dict[str, float]:
    """The rates of `ray_gather.py`, in a network namespace that has loopback alone."""
    script = 'ip link set lo up && exec "$0" "$@"'
    environ = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)}
    command = [python, "-m", "benchmarks.peers.ray_gather", contender, "--ranges", str(ranges)]
    command += ["--seconds", str(RAY_SECONDS)]
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", script, *command], cwd=common.ROOT, env=environ, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def beside_ray(python: str, whole: int, router: int, bodies: list[bytes], ranges: int, folder: Path) -> None:
    """Print the rates of one machine and of the cluster beside those of Ray Serve and of calls of actors."""
    print("\nThe same lookup, requests/s by how many at a time, and how many times its rate ours is:")
    print(f"{'':32}{'1':>10}{'16':>10}{'x1':>8}{'x16':>8}")
    for ours, port, cut in (("one machine", whole, 1), (f"cluster, {ranges} ranges", router, ranges)):
        own = {str(width): rate(port, bodies, width) for width in (1, 16)}
        print(f"{ours:32}{own['1']:10,.0f}{own['16']:10,.0f}")
        for name, contender in (("Ray Serve", "serve"), ("calls of Ray's actors", "actor")):
            found = rate_of_ray(python, contender, cut, folder)
            times = [own[width] / found[width] for width in ("1", "16")]
            label = f"  {name}, {cut} range{'s' if cut > 1 else ''}"
            print(f"{label:32}{found['1']:10,.0f}{found['16']:10,.0f}{times[0]:8.1f}{times[1]:8.1f}")
    print("(goals: at least 10 times Ray Serve and 4 times the calls)")


def wait_until_idle(port: int) -> None:
    """Wait for a service that is still busy with its start."""
    before = -1.0
    while (spent := common.processor_time(port)) > before + 0.02:
        before = spent
        time.sleep(1)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--requests", type=int, default=3000, help="one after the other, in each round")
    parser.add_argument("--ranges", type=int, default=4)
    parser.add_argument("--rows", type=int, default=PICK, help="of a lookup")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of 16 lookups at a time")
    parser.add_argument("--ray", metavar="PYTHON", help="of an environment with ray[serve]")


def run(given: argparse.Namespace) -> None:
    """Print the tables."""
    table = work.table()
    rng = np.random.default_rng(1)
    bodies = [body_of(rng.integers(0, ROWS, given.rows)) for _ in range(64)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environ = {"GATHERND_THREADS": "1"}

        def serve(*flags: str) -> int:
            def command(port: int) -> list[str]:
                executable, verb, *rest = common.gathernd_command(port)
                return [executable, verb, *flags, *rest]

            return stack.enter_context(common.serving(command, environ=environ))

        whole = serve()
        work.upload(whole, table)
        shards = [serve() for _ in range(given.ranges)]
        for number, port in enumerate(shards):
            start, stop = ROWS * number // given.ranges, ROWS * (number + 1) // given.ranges
            work.upload(port, table[start:stop], f"r{start}")
        write_map(folder / "map.json", shards)
        router = serve("--cluster", str(folder / "map.json"))
        for body in bodies:
            request = common.Request(PATH, body, {"Content-Type": BINARY})
            assert common.post(router, request) == common.post(whole, request)
        for port in (whole, *shards, router):
            wait_until_idle(port)
        found: dict[str, list[tuple[float, float]]] = {"one machine": [], "cluster": []}
        of_shards: list[float] = []
        for _ in range(given.rounds):
            for name, port in (("one machine", whole), ("cluster", router)):
                lookups(port, bodies, 200)
                before = sum(map(common.processor_time, shards))
                times, processor = lookups(port, bodies, given.requests)
                found[name].append((median(times), processor))
            of_shards.append((sum(map(common.processor_time, shards)) - before) / given.requests / len(shards) * 1e6)
        print(f"\nLookups of {given.rows} rows over {given.ranges} ranges, one at a time, medians of {given.rounds}:")
        print(f"{'':14}{'p50 ms':>12}{'service µs':>12}{'each shard µs':>15}")
        figures = {
            name: (median(time for time, _ in each), median(spent for _, spent in each)) for name, each in found.items()
        }
        for name, (milliseconds, processor) in figures.items():
            spent = f"{median(of_shards):15.0f}" if name == "cluster" else ""
            print(f"{name:14}{milliseconds:12.3f}{processor:12.0f}{spent}")
        ratio = figures["cluster"][1] / figures["one machine"][1]
        added = figures["cluster"][0] - figures["one machine"][0]
        print(
            f"the router takes {ratio:.1f} times as much as a plain lookup (goal: at most {GOAL_RATIO:g}), "
            f"and the answer comes {added:.2f} ms later (goal: at most {GOAL_MS:g})"
        )
        print(f"\nThe same, {FULL} at a time:")
        print(f"{'':14}{'requests/s':>12}{'service µs':>12}{'each shard µs':>15}")
        print(at_full_load("one machine", whole, [], bodies, given.seconds))
        print(at_full_load("cluster", router, shards, bodies, given.seconds))
        if given.ray:
            beside_ray(given.ray, whole, router, bodies, given.ranges, folder)
        else:
            print("Ray is left out: --ray names the Python of an environment with ray[serve]")

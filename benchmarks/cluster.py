"""A table in row ranges: what the router costs beside a plain lookup, and what asking a shard costs.

python -m benchmarks.cluster [--requests 3000] [--ranges 4] [--rows 256] [--ray PYTHON]

First the clients that may carry the inner requests: each asks one shard for 64 rows of 64 float32 again and again,
from a process of its own, and its processor time counts: httpx, aiohttp, asyncio streams, and the router's own
connection. Then one machine and a cluster, with the same table of 200,000 rows, in turns: a lookup of 256 rows in the
binary format, one at a time (its latency at low load), and the processor time of each of them in the service asked, and
in each shard; then 16 at a time. With other ranges and rows it gives the constants of `cluster_balance.py`.
With --ray, the interpreter of an environment with Ray Serve, also the same lookup by calls of Ray's actors and as a
request to Ray Serve (`ray_gather.py`), one at a time and 16 at a time: of a whole table, to compare one machine with,
and of one in as many ranges as the cluster's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from app.cluster.router.row_sinks import RowSink
from app.cluster.router.shard_connection import Failure, ShardConnection
from app.formats.safetensors.header import write_header
from app.tensors.dtypes import DTYPES
from benchmarks import common

ROWS, WIDTH, ASKED, INNER = 200_000, 64, 256, 64
BINARY = "application/x-safetensors"
CLIENTS = ("httpx", "aiohttp", "streams", "connection")
PATH = "/gathernd?tensor=items"
GOAL_RATIO, GOAL_MS = 6.0, 1.5


def body_of(rows: Any) -> bytes:
    """A safetensors body of indices."""
    flat = np.ascontiguousarray(rows, np.int64)
    return write_header("indices", DTYPES["int64"], (len(flat), 1), flat.nbytes) + flat.tobytes()


# The inner clients


async def with_httpx(port: int, body: bytes, count: int) -> None:
    """Ask with httpx."""
    import httpx  # noqa: PLC0415

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for _ in range(count):
            answer = await client.post(PATH, content=body, headers={"content-type": BINARY})
            assert answer.status_code == 200


async def with_aiohttp(port: int, body: bytes, count: int) -> None:
    """Ask with aiohttp."""
    import aiohttp  # noqa: PLC0415

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for _ in range(count):
            async with session.post(PATH, data=body, headers={"content-type": BINARY}) as answer:
                await answer.read()
                assert answer.status == 200


def header_of(body: bytes) -> bytes:
    """The header of a request."""
    return (
        f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {BINARY}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()


async def with_streams(port: int, body: bytes, count: int) -> None:
    """Ask with asyncio's streams."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = header_of(body)
    for _ in range(count):
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        at = answer.index(b"content-length: ") + 16
        await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
    writer.close()


async def with_connection(port: int, body: bytes, count: int) -> None:
    """Ask as the router does, the rows put to their places."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: ShardConnection(lambda _: None), "127.0.0.1", port)
    head = header_of(body)
    output = np.empty(ASKED, np.dtype((np.void, 4 * WIDTH)))
    sink = RowSink(output, np.arange(INNER) * 4, DTYPES["float32"], (INNER, WIDTH), 4 * WIDTH)
    for _ in range(count):
        answered = loop.create_future()

        def done(
            _: ShardConnection, failure: Failure | None, answered: asyncio.Future[Failure | None] = answered
        ) -> None:
            answered.set_result(failure)

        connection.ask([head + body], sink, None, 5.0, done)
        assert await answered is None
    connection.close()


ASK: dict[str, Callable[[int, bytes, int], Awaitable[None]]] = {
    "httpx": with_httpx, "aiohttp": with_aiohttp, "streams": with_streams, "connection": with_connection,
}  # fmt: skip


def ask(name: str, port: int, count: int) -> None:
    """Be a process that asks; print requests a second and the processor microseconds of each."""
    import uvloop  # noqa: PLC0415

    body = body_of(np.arange(INNER) * 17)

    async def run() -> tuple[float, float]:
        await ASK[name](port, body, 100)
        begun, spent = time.perf_counter(), time.process_time()
        await ASK[name](port, body, count)
        return time.perf_counter() - begun, time.process_time() - spent

    seconds, processor = uvloop.run(run())
    print(json.dumps([count / seconds, processor / count * 1e6]))


# One machine and a cluster


def put(port: int, name: str, table: Any) -> None:
    """Put a table of float32."""
    shape = ",".join(map(str, table.shape))
    path = f"/tensors/{name}?dtype=float32&shape={shape}"
    headers = {"Content-Type": "application/octet-stream"}
    common.post(port, common.Request(path, table.tobytes(), headers, "PUT"))


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
    """The milliseconds of `count` lookups, one after the other, and the service's processor time of each, in µs."""
    before = common.processor_time(port)
    times: list[float] = []

    async def run() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times.extend([await look_up(reader, writer, bodies[number % len(bodies)]) for number in range(count)])
        writer.close()

    asyncio.run(run())
    return times, (common.processor_time(port) - before) / count * 1e6


RAY_SECONDS = 6.0
FULL, FULL_SECONDS = 16, 4.0
NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def count_answers(port: int, bodies: list[bytes], width: int, seconds: float) -> tuple[int, float]:
    """How many lookups are answered on so many connections, asked for by one process, as Ray is; and in what time."""

    async def ask(seed: int, until: float) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        done = 0
        while time.perf_counter() < until:
            body = bodies[(seed + done) % len(bodies)]
            writer.write(header_of(body) + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            at = answer.index(b"content-length: ") + 16
            await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
            done += 1
        writer.close()
        return done

    async def run() -> tuple[int, float]:
        begun = time.perf_counter()
        done = await asyncio.gather(*(ask(seed, begun + seconds) for seed in range(width)))
        return sum(done), time.perf_counter() - begun

    return asyncio.run(run())


def rate(port: int, bodies: list[bytes], width: int) -> float:
    """Lookups a second, so many at a time."""
    count_answers(port, bodies, width, 1.0)
    count, seconds = count_answers(port, bodies, width, RAY_SECONDS)
    return count / seconds


def at_full_load(name: str, port: int, shards: list[int], bodies: list[bytes]) -> str:
    """A line: lookups a second, `FULL` at a time, and the processor time of each in the service and in a shard."""
    count_answers(port, bodies, FULL, 1.0)
    before = [common.processor_time(one) for one in (port, *shards)]
    count, seconds = count_answers(port, bodies, FULL, FULL_SECONDS)
    spent = [(common.processor_time(one) - was) / count * 1e6 for one, was in zip((port, *shards), before, strict=True)]
    of_shard = f"{sum(spent[1:]) / len(shards):15.0f}" if shards else ""
    return f"{name:14}{count / seconds:12,.0f}{spent[0]:12.0f}{of_shard}"


def rate_of_ray(python: str, contender: str, ranges: int, folder: Path) -> dict[str, float]:
    """The rates of `ray_gather.py`, in a network namespace that has loopback alone."""
    script = 'ip link set lo up && exec "$0" "$@"'
    environ = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)}
    command = [python, "-m", "benchmarks.ray_gather", contender, "--ranges", str(ranges)]
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


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--ranges", type=int, default=4)
    parser.add_argument("--rows", type=int, default=ASKED, help="of a lookup")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", metavar="PYTHON", help="an interpreter with ray[serve]")
    parser.add_argument("--ask", nargs=2, metavar=("CLIENT", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ask:
        ask(given.ask[0], int(given.ask[1]), given.requests)
        return
    print(common.machine_line())
    table = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    rng = np.random.default_rng(1)
    bodies = [body_of(rng.integers(0, ROWS, given.rows)) for _ in range(64)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cache = str(folder / "cache")
        environ = {"GATHERND_CACHE_DIR": cache, "GATHERND_THREADS": "1"}
        # All that is compiled is there from the start: what a service compiles beside its first requests would count.
        subprocess.run([sys.executable, "-m", "app.cli", "warm", "--cache-dir", cache], check=True, capture_output=True)

        def serve(*flags: str) -> int:
            def command(port: int) -> list[str]:
                executable, verb, *rest = common.gathernd_command(port)
                return [executable, verb, *flags, *rest]

            return stack.enter_context(common.serving(command, environ=environ, limit=200))

        whole = serve()
        put(whole, "items", table)
        shards = [serve() for _ in range(given.ranges)]
        for number, port in enumerate(shards):
            start, stop = ROWS * number // given.ranges, ROWS * (number + 1) // given.ranges
            put(port, f"r{start}", table[start:stop])
        write_map(folder / "map.json", shards)
        router = serve("--cluster", str(folder / "map.json"))
        for body in bodies:
            request = common.Request(PATH, body, {"Content-Type": BINARY})
            assert common.post(router, request) == common.post(whole, request)
        for port in (whole, *shards, router):
            wait_until_idle(port)
        print(f"\nAsking one shard for {INNER} rows, one request at a time:")
        print(f"{'':14}{'requests/s':>12}{'asker µs':>12}")
        for client in CLIENTS:
            command = [sys.executable, "-m", "benchmarks.cluster", "--requests", str(given.requests)]
            command += ["--ask", client, str(whole)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
            rate, processor = json.loads(done.stdout)
            print(f"{client:14}{rate:12,.0f}{processor:12.0f}")
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
        print(at_full_load("one machine", whole, [], bodies))
        print(at_full_load("cluster", router, shards, bodies))
        if given.ray:
            beside_ray(given.ray, whole, router, bodies, given.ranges, folder)


if __name__ == "__main__":
    main()

"""The Python client beside its peers and its floors: one lookup of 256 rows of 64 float32, again and again.

python -m benchmarks.client [--seconds 3] [--rounds 5] [--only sync,async]

A table of 200,000 x 64 float32 is resident; 256 int64 indices go and 64 KiB come, in the binary formats. Every
contender runs in a process of its own, they take turns, and the median of the turns counts. One at a time: the client,
the client over httpx (as it is through a proxy), `http.client` with a request made beforehand, tritonclient[http], and
redis-py with one MGET of the rows where redis-server and the package redis are installed. 16 at once in one event loop:
the client, also over httpx, tritonclient's aio, and bare asyncio streams with a request made beforehand. `client cpu`
is the processor time of a lookup in the contender's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks import common, work
from benchmarks.peers.redis_server import key_of, redis_server
from gathernd import AsyncClient, Client

ROWS, WIDTH, PICK, AT_ONCE = work.ROWS, work.WIDTH, work.PICK, 16
Lookup = Callable[[], Any]
AsyncLookup = Callable[[], Awaitable[Any]]


table = work.table


def picked() -> NDArray[np.int64]:
    """The indices of a lookup."""
    return np.random.default_rng(9).integers(0, ROWS, (PICK, 1))


def raw_request() -> tuple[str, bytes, dict[str, str]]:
    """Path, body and header of a lookup, made beforehand for the floors."""
    described = {"indices": {"dtype": "I64", "shape": [PICK, 1], "data_offsets": [0, 8 * PICK]}}
    header = json.dumps(described, separators=(",", ":")).encode()
    header = header.ljust(len(header) + -len(header) % 8)
    body = len(header).to_bytes(8, "little") + header + picked().tobytes()
    return "/gathernd?tensor=items", body, {"Content-Type": "application/x-safetensors"}


def of_body(body: bytes) -> NDArray[np.float32]:
    """The rows at the end of an answer."""
    return np.frombuffer(body, np.float32, offset=len(body) - 4 * PICK * WIDTH).reshape(PICK, WIDTH)


@contextmanager
def our_client(port: int) -> Iterator[Lookup]:
    indices = picked()
    with Client(f"http://127.0.0.1:{port}") as client:
        yield lambda: client.gathernd("items", indices)


@contextmanager
def our_client_over_httpx(port: int) -> Iterator[Lookup]:
    indices = picked()
    with Client(f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport()) as client:
        yield lambda: client.gathernd("items", indices)


@contextmanager
def http_client(port: int) -> Iterator[Lookup]:
    from http.client import HTTPConnection  # noqa: PLC0415  (a contender's turn imports its own)

    path, body, header = raw_request()
    connection = HTTPConnection("127.0.0.1", port)

    def lookup() -> Any:
        connection.request("POST", path, body, header)
        return of_body(connection.getresponse().read())

    yield lookup
    connection.close()


@contextmanager
def triton(port: int) -> Iterator[Lookup]:
    from tritonclient import http  # noqa: PLC0415  (a contender's turn imports its own)

    client, indices = http.InferenceServerClient(f"127.0.0.1:{port}"), picked()

    def lookup() -> Any:
        wanted = http.InferInput("indices", indices.shape, "INT64")
        wanted.set_data_from_numpy(indices)
        return client.infer("items", [wanted]).as_numpy("output")

    yield lookup
    client.close()


@contextmanager
def redis_mget(port: int) -> Iterator[Lookup]:
    redis: Any = import_module("redis")  # no dependency of the tests, and without types there

    client, keys = redis.Redis(port=port), [key_of(row) for row in picked()[:, 0].tolist()]

    def lookup() -> Any:
        rows: Any = client.mget(keys)
        return np.frombuffer(b"".join(rows), np.float32).reshape(PICK, WIDTH)

    yield lookup
    client.close()


async def our_async_client(port: int, drive: Callable[[AsyncLookup], Awaitable[None]]) -> None:
    indices = picked()
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        await drive(lambda: client.gathernd("items", indices))


async def our_async_client_over_httpx(port: int, drive: Callable[[AsyncLookup], Awaitable[None]]) -> None:
    indices = picked()
    async with AsyncClient(f"http://127.0.0.1:{port}", transport=httpx.AsyncHTTPTransport()) as client:
        await drive(lambda: client.gathernd("items", indices))


async def triton_aio(port: int, drive: Callable[[AsyncLookup], Awaitable[None]]) -> None:
    from tritonclient.http import aio  # noqa: PLC0415  (a contender's turn imports its own)

    indices = picked()

    async def lookup() -> Any:
        wanted = aio.InferInput("indices", indices.shape, "INT64")
        wanted.set_data_from_numpy(indices)
        return (await client.infer("items", [wanted])).as_numpy("output")

    async with aio.InferenceServerClient(f"127.0.0.1:{port}") as client:
        await drive(lookup)


async def bare_streams(port: int, drive: Callable[[AsyncLookup], Awaitable[None]]) -> None:
    path, body, header = raw_request()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in header.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    free = [await asyncio.open_connection("127.0.0.1", port, limit=1 << 20) for _ in range(AT_ONCE)]

    async def lookup() -> Any:
        reader, writer = connection = free.pop()
        writer.write(request)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = of_body(await reader.readexactly(size))
        free.append(connection)
        return found

    await drive(lookup)
    for _, writer in free:
        writer.close()


SYNC = {
    "gathernd": our_client,
    "gathernd over httpx": our_client_over_httpx,
    "http.client": http_client,
    "tritonclient": triton,
    "redis-py MGET": redis_mget,
}
ASYNC = {
    "gathernd, async": our_async_client,
    "async over httpx": our_async_client_over_httpx,
    "tritonclient aio": triton_aio,
    "asyncio streams": bare_streams,
}


def turn(name: str, port: int, seconds: float) -> tuple[float, float]:
    """One turn of a contender in this process: lookups a second, and seconds of processor time of each."""
    expected = table()[picked()[:, 0]]
    if name in SYNC:
        with SYNC[name](port) as lookup:
            return _drive(lookup, expected, seconds)
    figures: list[tuple[float, float]] = []

    async def drive(lookup: AsyncLookup) -> None:
        figures.append(await _drive_async(lookup, expected, seconds))

    asyncio.run(ASYNC[name](port, drive))
    return figures[0]


def _drive(lookup: Lookup, expected: NDArray[Any], seconds: float) -> tuple[float, float]:
    for _ in range(100):
        assert np.array_equal(lookup(), expected)
    begun, spent, count = time.perf_counter(), _cpu(), 0
    while time.perf_counter() - begun < seconds:
        lookup()
        count += 1
    return count / (time.perf_counter() - begun), (_cpu() - spent) / count


async def _drive_async(lookup: AsyncLookup, expected: NDArray[Any], seconds: float) -> tuple[float, float]:
    counts = [0] * AT_ONCE

    async def worker(number: int, end: float) -> None:
        assert np.array_equal(await lookup(), expected)
        while time.perf_counter() < end:
            await lookup()
            counts[number] += 1

    await asyncio.gather(*(worker(number, time.perf_counter() + 0.1) for number in range(AT_ONCE)))
    counts[:] = [0] * AT_ONCE
    begun, spent = time.perf_counter(), _cpu()
    await asyncio.gather(*(worker(number, begun + seconds) for number in range(AT_ONCE)))
    return sum(counts) / (time.perf_counter() - begun), (_cpu() - spent) / max(sum(counts), 1)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print both tables, or one turn where `--turn` asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="sync,async")
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        print(json.dumps(turn(options.turn, options.port, options.seconds)))
        return
    print(common.machine_line())
    with ExitStack() as servers:
        port = servers.enter_context(common.serving(common.gathernd_command, limit=120))
        work.upload(port, table())
        ports = dict.fromkeys([*SYNC, *ASYNC], port)
        redis = servers.enter_context(redis_server(table()))
        if redis is None:
            del ports["redis-py MGET"]
        else:
            ports["redis-py MGET"] = redis.port
        if not find_spec("tritonclient"):
            print("tritonclient is left out: it is not installed")
            ports = {name: one for name, one in ports.items() if not name.startswith("tritonclient")}
        peers = {"tritonclient", "tritonclient aio", "redis-py MGET"}
        for kind, contenders in (("sync", SYNC), ("async", ASYNC)):
            if kind in options.only.split(","):
                present = {name: ports[name] for name in contenders if name in ports}
                title = "One at a time" if kind == "sync" else f"{AT_ONCE} at once"
                print(f"\n{title}, medians of {options.rounds} turns of {options.seconds:g} s")
                print(report(present, sorted(peers & present.keys()), options.rounds, options.seconds), flush=True)


def report(ports: dict[str, int], bases: list[str], rounds: int, seconds: float) -> str:
    """A table of the contenders, which take turns, each with its rate over that of every one of `bases`."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
    for _ in range(rounds):
        for name, port in ports.items():
            command = [sys.executable, "-m", "benchmarks.client", "--turn", name, "--port", str(port)]
            done = subprocess.run(
                [*command, "--seconds", str(seconds)], cwd=common.ROOT, stdout=subprocess.PIPE, text=True, check=True
            )
            rate, cpu = json.loads(done.stdout)
            figures[name].append((rate, cpu))
    rates = {name: statistics.median(rate for rate, _ in turns) for name, turns in figures.items()}
    lines = [f"{'':20}{'lookups/s':>10}{'client cpu, µs':>16}" + "".join(f"{'× ' + base:>20}" for base in bases)]
    for name, turns in figures.items():
        cpu = statistics.median(cpu for _, cpu in turns) * 1e6
        ratios = "".join(f"{rates[name] / rates[base]:>20.2f}" for base in bases)
        lines.append(f"{name:20}{rates[name]:>10,.0f}{cpu:>16,.0f}{ratios}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Lookups by key beside lookups by position and Redis' MGET, of one table and of 26 tables with bags.

wrk and redis-benchmark, with 16 connections each, ask for 256 random keys a request. The service has two workers, Redis
two threads for its connections. Contenders take turns; a figure is the best of the rounds. The processor time of a
request is that of all processes of the service, or of Redis.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from benchmarks import common
from benchmarks.kernels.bags import BAGS, BATCH
from benchmarks.peers.redis_server import mgets, redis_server
from benchmarks.work import SAFETENSORS, lua_of
from gathernd import Client

PICK, BODIES, CONNECTIONS, WARM = 256, 64, 16, 20
MISSING = 0.1
"""The share of ids that tables lack."""
Array = NDArray[Any]


class Figure(NamedTuple):
    """Requests a second, and seconds of processor time of a request in the server."""

    rate: float
    cost: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64, help="float32 of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)


def run(options: argparse.Namespace) -> None:
    """Print both tables."""
    random = np.random.default_rng(2)
    keys = random.permutation(np.unique(random.integers(0, 2**62, options.rows + options.rows // 8 + 8)))[
        : options.rows
    ]
    table = random.standard_normal((options.rows, options.width), np.float32)
    with common.serving(common.gathernd_command, environ={"GATHERND_WORKERS": "2"}, limit=300) as port:
        with Client(f"http://127.0.0.1:{port}", timeout=600) as client:
            client.put("by_position", table)
            client.put("by_key", table, keys=keys)
            client.put("by_text", table, keys=np.array(_names(options.rows), object))
        lookups(port, keys, table, options.rounds, options.seconds)
        tables(port, options.rounds, options.seconds)


def lookups(port: int, keys: Array, table: Array, rounds: int, seconds: float) -> None:
    """Print rate and processor time of lookups of 256 rows."""
    random = np.random.default_rng(3)
    picks = [random.integers(0, len(keys), PICK) for _ in range(BODIES)]
    texts = [_texts([_name(number) for number in pick.tolist()]) for pick in picks]
    gather = {
        "by position": ("by_position", [save({"indices": pick}) for pick in picks]),
        "by int64 key": ("by_key", [save({"keys": keys[pick]}) for pick in picks]),
        "by string key": ("by_text", [save({f"keys.{part}": array for part, array in text.items()}) for text in texts]),
    }
    contenders: dict[str, Callable[[], Figure]] = {
        name: lambda path=f"/gather?tensor={resident}", bodies=bodies: _rate(port, path, bodies, seconds)  # type: ignore[misc]
        for name, (resident, bodies) in gather.items()
    }
    with redis_server(table) as redis:
        if redis is not None:
            contenders["Redis MGET"] = lambda: Figure(*mgets(redis, len(table), PICK, seconds, CONNECTIONS))
        best = _best(contenders, rounds)
    rows, width = table.shape
    print(f"\nlookups of {PICK} rows: requests a second, processor time of one; {rows:,} rows of {width} float32")
    _show(best, "by position")


def tables(port: int, rounds: int, seconds: float, rows: int = 20_000, width: int = 32) -> None:
    """Print rate and processor time of a lookup in 26 tables with bags, a tenth of whose ids are missing."""
    random = np.random.default_rng(4)
    names = _names(rows)
    with Client(f"http://127.0.0.1:{port}", timeout=600) as client:
        for number in range(len(BAGS)):
            table = random.standard_normal((rows, width), np.float32)
            client.put(f"bags_{number}", table, keys=np.array(names, object))
    by_position, by_key = [], []
    offsets = [np.arange(BATCH, dtype=np.int64) * size for size in BAGS]
    for _ in range(8):
        # Positions from `rows` on, and names of them, are in no table.
        picks = [random.integers(0, int(rows / (1 - MISSING)), BATCH * size) for size in BAGS]
        arrays: dict[str, Array] = {f"{number}.offsets": one for number, one in enumerate(offsets)}
        indices = {f"{number}.indices": pick for number, pick in enumerate(picks)}
        by_position.append(save(indices | arrays, _asked({}, {"out_of_bounds": "fill"})))
        for number, pick in enumerate(picks):
            for part, array in _texts([_name(one) for one in pick.tolist()]).items():
                arrays[f"{number}.keys.{part}"] = array
        by_key.append(save(arrays, _asked({"missing": "fill"})))
    best = _best(
        {
            "by position": lambda: _rate(port, "/lookup", by_position, seconds),
            "by string key": lambda: _rate(port, "/lookup", by_key, seconds),
        },
        rounds,
    )
    count = BATCH * sum(BAGS)
    print(f"\nlookups of {count:,} rows in bags of {len(BAGS)} tables, {MISSING:.0%} of the ids missing")
    _show(best, "by position")


def _rate(port: int, path: str, bodies: list[bytes], seconds: float) -> Figure:
    with tempfile.TemporaryDirectory(prefix="gathernd-wrk-") as folder:
        script = lua_of(bodies, folder)
        spent = common.processor_time(port)
        request = common.Request(path, bodies[0], SAFETENSORS)
        found = common.wrk(port, request, seconds=seconds, connections=CONNECTIONS, warm=WARM, script=script)
    if found.errors:
        raise RuntimeError(f"{found.errors} of {found.requests} requests failed")
    return Figure(found.rate, (common.processor_time(port) - spent) / (found.requests + WARM))


def _best(contenders: Mapping[str, Callable[[], Figure]], rounds: int) -> dict[str, Figure]:
    best = dict.fromkeys(contenders, Figure(0, float("inf")))
    for _ in range(rounds):
        for name, run in contenders.items():
            figure, before = run(), best[name]
            best[name] = Figure(max(before.rate, figure.rate), min(before.cost, figure.cost))
    return best


def _show(best: Mapping[str, Figure], base: str) -> None:
    for name, (rate, cost) in best.items():
        ratios = (rate / best[base].rate, best[base].cost / cost) if best[base].rate and cost else (0.0, 0.0)
        against = f"{ratios[0]:.2f} and {ratios[1]:.2f} x {base}"
        print(f"{name:20} {rate:9,.0f}   {cost * 1e6:9,.0f} µs   {against}")


def _name(number: int) -> str:
    return f"user:{number:x}"


def _names(count: int) -> list[str]:
    return [_name(number) for number in range(count)]


def _asked(options: Mapping[str, str], of_all: Mapping[str, str] | None = None) -> dict[str, str]:
    features = [{"tensor": f"bags_{number}", "pooling": "sum", **options} for number in range(len(BAGS))]
    return {"lookup": json.dumps({"features": features, **(of_all or {})})}


def _texts(texts: list[str]) -> dict[str, Array]:
    """Keys that are strings, as two tensors."""
    utf8 = [text.encode() for text in texts]
    return {
        "offsets": np.cumsum([0, *map(len, utf8)], dtype=np.int64),
        "bytes": np.frombuffer(b"".join(utf8), np.uint8),
    }

"""Lookups by key over HTTP beside those by position and Redis' MGET: the part of `benchmarks.key_index` with a service.

wrk and redis-benchmark, C programs with 16 connections, drive the service and Redis. Each request asks for 256 random
keys: wrk sends 64 bodies in turn, redis-benchmark makes new keys for each. The service has two workers, Redis two
threads for its connections. Contenders take turns; a figure is the best of the rounds. The processor time of a request
is that of all processes of the service, or of Redis, and changes little when other programs share the machine.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.lookup import BAGS, BATCH, CACHE, body
from gathernd import Client

PICK, BODIES, CONNECTIONS, WARM = 256, 64, 16, 20
MISSING = 0.1
"""The share of ids that tables lack."""
NATIVE = {"Content-Type": "application/x-safetensors"}
Array = NDArray[Any]


class Figure(NamedTuple):
    """Requests a second, and seconds of processor time of a request in the server."""

    rate: float
    cost: float


def run(rows: int, width: int, rounds: int, seconds: float) -> None:
    """Print the tables of a service with `rows` rows of `width` float32."""
    random = np.random.default_rng(2)
    keys = random.permutation(np.unique(random.integers(0, 2**62, rows + rows // 8)))[:rows]
    table = random.standard_normal((rows, width), np.float32)
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        environ = {"GATHERND_WORKERS": "2", "GATHERND_STORE_DIR": folder, "GATHERND_CACHE_DIR": str(CACHE)}
        with common.serving(common.gathernd_command, environ=environ, limit=300) as port:
            uploads(port, table, keys, rounds, Path(folder))
            with Client(f"http://127.0.0.1:{port}", timeout=600) as client:
                texts = _names(rows)
                client.put("by_text", table, keys=np.array(texts, object))
            lookups(port, keys, width, rounds, seconds)
            tables(port, rounds, seconds)


def uploads(port: int, table: Array, keys: Array, rounds: int, store: Path) -> None:
    """Print how long an upload takes with keys and without, and how large the index is."""
    best = {"without keys": float("inf"), "with keys": float("inf")}
    with Client(f"http://127.0.0.1:{port}", timeout=600) as client:
        for _ in range(rounds):
            for name, before in best.items():
                given = keys if name == "with keys" else None
                begun = time.perf_counter()
                client.put("by_key" if given is not None else "by_position", table, keys=given)
                best[name] = min(before, time.perf_counter() - begun)
    index = max(file.stat().st_size for file in store.rglob("*.index"))
    print(f"\nupload of {len(table):,} rows of {table.shape[1]} float32")
    print(*(f"{name:20} {taken:7.2f} s" for name, taken in best.items()), sep="\n")
    print(f"with keys {best['with keys'] / best['without keys']:.2f} x without")
    print(f"{index / len(keys):.1f} bytes of the index a key")


def lookups(port: int, keys: Array, width: int, rounds: int, seconds: float) -> None:
    """Print rate and processor time of lookups of 256 rows."""
    random = np.random.default_rng(3)
    picks = [random.integers(0, len(keys), PICK) for _ in range(BODIES)]
    texts = [_texts([_name(number) for number in pick.tolist()]) for pick in picks]
    gather = {
        "by position": ("by_position", [body({"indices": pick}) for pick in picks]),
        "by int64 key": ("by_key", [body({"keys": keys[pick]}) for pick in picks]),
        "by string key": ("by_text", [_body_of_texts({"keys": text}) for text in texts]),
    }
    contenders: dict[str, Callable[[], Figure]] = {
        name: lambda path=f"/gather?tensor={table}", bodies=bodies: _rate(port, path, bodies, seconds)  # type: ignore[misc]
        for name, (table, bodies) in gather.items()
    }
    with redis(len(keys), width) as mget:
        if mget is not None:
            contenders["Redis MGET"] = lambda: mget(seconds)
        best = _best(contenders, rounds)
    print(f"\nlookups of {PICK} rows: requests a second, processor time of one; {len(keys):,} rows of {width} float32")
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
        by_position.append(body(indices | arrays, _asked({}, {"out_of_bounds": "fill"})))
        texts = {f"{number}.keys": _texts([_name(one) for one in pick.tolist()]) for number, pick in enumerate(picks)}
        by_key.append(_body_of_texts(texts, arrays, _asked({"missing": "fill"})))
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


@contextmanager
def redis(count: int, width: int) -> Iterator[Callable[[float], Figure] | None]:
    """MGETs a second of 256 of the rows in a Redis of its own; None if redis-server or the package redis is missing."""
    try:
        import redis as library  # noqa: PLC0415  (of the group dev)
    except ModuleNotFoundError:
        yield None
        return
    port = common.free_port()
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--io-threads", "2"]
        with subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL) as process:
            try:
                with library.Redis(port=port) as client:
                    _wait(client, library.ConnectionError)
                    row = np.zeros(width, np.float32).tobytes()
                    for first in range(0, count, 10_000):
                        some = range(first, min(first + 10_000, count))
                        client.mset({f"row:{number:012}": row for number in some})
                yield lambda seconds: _mgets(process.pid, port, count, seconds)
            finally:
                process.terminate()


def _mgets(process: int, port: int, count: int, seconds: float) -> Figure:
    """MGETs for at least half of so many seconds."""
    sent = 2000
    while True:
        command = ["redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(sent), "-r", str(count)]
        asked = ["--csv", "MGET", *["row:__rand_int__"] * PICK]
        begun, spent = time.perf_counter(), common.cpu_seconds(process)
        done = subprocess.run([*command, *asked], capture_output=True, text=True, check=True)
        taken, spent = time.perf_counter() - begun, common.cpu_seconds(process) - spent
        if taken >= seconds / 2:
            return Figure(float(done.stdout.splitlines()[-1].split('","')[1].strip('"')), spent / sent)
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


def _rate(port: int, path: str, bodies: list[bytes], seconds: float) -> Figure:
    with tempfile.TemporaryDirectory(prefix="gathernd-wrk-") as folder:
        for number, sent in enumerate(bodies):
            (Path(folder) / str(number)).write_bytes(sent)
        script = f"""
local bodies, turn = {{}}, 0
for number = 0, {len(bodies) - 1} do
  local part = io.open("{folder}/" .. number, "rb")
  bodies[number + 1] = part:read("*a")
  part:close()
end
function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", nil, nil, bodies[turn])
end
"""
        service = _processes(port)
        spent = sum(map(common.cpu_seconds, service))
        found = common.wrk(
            port,
            common.Request(path, bodies[0], NATIVE),
            seconds=seconds,
            connections=CONNECTIONS,
            warm=WARM,
            script=script,
        )
    if found.errors:
        raise RuntimeError(f"{found.errors} of {found.requests} requests failed")
    spent = sum(map(common.cpu_seconds, service)) - spent
    return Figure(found.rate, spent / (found.requests + WARM))


def _processes(port: int) -> list[int]:
    """The process of a service, and its workers."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended in the meantime
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().endswith(f"--port\0{port}\0".encode()):
                found.append(int(folder.name))
    return found + [process for process, parent in parents.items() if parent in found]


def _best(contenders: Mapping[str, Callable[[], Figure]], rounds: int) -> dict[str, Figure]:
    best = dict.fromkeys(contenders, Figure(0, float("inf")))
    for _ in range(rounds):
        for name, run in contenders.items():
            figure, before = run(), best[name]
            best[name] = Figure(max(before.rate, figure.rate), min(before.cost, figure.cost))
    return best


def _show(best: Mapping[str, Figure], base: str) -> None:
    for name, (rate, cost) in best.items():
        against = f"{rate / best[base].rate:.2f} and {best[base].cost / cost:.2f} x {base}"
        print(f"{name:20} {rate:9,.0f}   {cost * 1e6:9,.0f} µs   {against}")


def _name(number: int) -> str:
    return f"user:{number:x}"


def _names(count: int) -> list[str]:
    return [_name(number) for number in range(count)]


def _asked(options: Mapping[str, str], of_all: Mapping[str, str] | None = None) -> dict[str, str]:
    features = [{"tensor": f"bags_{number}", "pooling": "sum", **options} for number in range(len(BAGS))]
    return {"lookup": json.dumps({"features": features, **(of_all or {})})}


def _texts(texts: list[str]) -> tuple[Array, bytes]:
    utf8 = [text.encode() for text in texts]
    return np.cumsum([0, *map(len, utf8)], dtype=np.int64), b"".join(utf8)


def _body_of_texts(
    texts: Mapping[str, tuple[Array, bytes]],
    arrays: Mapping[str, Array] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """A safetensors body of arrays of int64 and of strings, each of them offsets and bytes."""
    items: dict[str, tuple[str, bytes]] = {name: ("I64", array.tobytes()) for name, array in (arrays or {}).items()}
    items |= {f"{name}.offsets": ("I64", offsets.tobytes()) for name, (offsets, _) in texts.items()}
    items |= {f"{name}.bytes": ("U8", utf8) for name, (_, utf8) in texts.items()}
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, (kind, raw) in items.items():
        size = 8 if kind == "I64" else 1
        header[name] = {"dtype": kind, "shape": [len(raw) // size], "data_offsets": [end, end := end + len(raw)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(raw for _, raw in items.values())

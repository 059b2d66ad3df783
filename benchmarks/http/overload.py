"""Overload: four times as many requests as the service can answer.

First the capacity: a few connections that each ask again once they have their answer. Then requests at `--times` that
rate from a process of its own, whose clock for a request starts when it is due. Then the capacity again; the mean of
both is the peak. Goals: nine tenths of the peak are answered, 99 of 100 refusals come within 50 ms, and the memory
stays within the budget.

Service and generator have half of the processors each. `per CPU` compares the answers for each second of the
processors that the service had. `CONNECTIONS` bounds how many requests are under way: `unsent` are beyond it.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save

from benchmarks import common, work
from benchmarks.load_generator import Seen, generate, raw

MIB: Final = 1 << 20
PEAK_CONNECTIONS: Final = 8
ROWS: Final = 4096


def inflate() -> common.Request:
    """1,000,000 indices that came compressed, the answer compressed: little to send, much to do."""
    indices = (np.arange(MIB, dtype=np.int64) % 251)[:, None]
    about = {"name": "indices", "datatype": "INT64", "shape": [MIB, 1], "parameters": {"binary_data_size": 8 * MIB}}
    text = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    return common.Request(
        "/v2/models/flat/infer",
        gzip.compress(text + indices.tobytes(), 6),
        {
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "gzip",
            "Accept-Encoding": "gzip",
            "Inference-Header-Content-Length": str(len(text)),
        },
    )


def text() -> common.Request:
    """1,000,000 float32 in JSON that came compressed, 10 of them out."""
    values = ",".join(["0.6394268", "12.25", "-3e-7", "1000000.5"] * 250_000)
    body = (
        f'{{"data":{{"dtype":"float32","shape":[1000000],"values":[{values}]}},'
        '"indices":{"dtype":"int64","shape":[10,1],"values":[0,1,2,3,4,5,6,7,8,9]}}'
    )
    return common.Request(
        "/gathernd", gzip.compress(body.encode(), 6), {"Content-Type": common.JSON, "Content-Encoding": "gzip"}
    )


def inline() -> common.Request:
    """4 MB of float32 in, 10,000 tuples of 2, 40 KB out."""
    rng = np.random.default_rng(9)
    body = save({"data": rng.random((1000, 1000), dtype=np.float32), "indices": rng.integers(0, 1000, (10_000, 2))})
    return common.Request("/gathernd", body, work.SAFETENSORS)


WORK: Final[dict[str, Callable[[], common.Request]]] = {"inflate": inflate, "text": text, "inline": inline}
CONNECTIONS: Final = {"inflate": 1000, "text": 1000, "inline": 64}
"""Most connections that are open at a time: as many requests may wait for their answer."""


def memory(process: int, name: str) -> int:
    """Bytes of memory of a process: VmRSS now, VmHWM at its peak."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {process} has no {name}")


def put_tables(port: int) -> None:
    """Upload the resident tensors: `table`, 4096 rows of 4 KiB, and `flat`, 4096 bytes."""
    items = np.arange(ROWS * 4096, dtype=np.uint32).astype(np.uint8)
    work.upload(port, items.reshape(ROWS, 4096), "table")
    work.upload(port, items[:4096], "flat")


def measure(name: str, seconds: float, times: float, budget: str, together: bool) -> str:
    """Capacity, then overload: one line of the table."""
    request = WORK[name]()
    served, generating = common.halves(together)

    def command(port: int) -> list[str]:
        flags = ["--memory-budget", budget, "--threads", str(len(served))]
        executable, verb, *rest = common.gathernd_command(port)
        return [*common.on(served), executable, verb, *flags, *rest]

    def ask(port: int, seconds: float, rate: float, connections: int) -> Seen:
        return generate(generating, port, sent, seconds, rate, connections)

    with common.serving(command, limit=120) as port:
        put_tables(port)
        right = common.post(port, request)
        sent = raw(request)
        ask(port, 1, 0, PEAK_CONNECTIONS)  # warm
        process = common.processes(port)[0]
        start = common.cpu_seconds(process)
        first = ask(port, seconds, 0, PEAK_CONNECTIONS)
        peak_cpu = common.cpu_seconds(process) - start
        Path(f"/proc/{process}/clear_refs").write_text("5")
        before = memory(process, "VmRSS")
        start = common.cpu_seconds(process)
        seen = ask(port, seconds, times * first.rate(200), CONNECTIONS[name])
        cpu = common.cpu_seconds(process) - start
        grown = memory(process, "VmHWM") - before
        peak = (first.rate(200) + ask(port, seconds, 0, PEAK_CONNECTIONS).rate(200)) / 2
        if common.post(port, request) != right:
            raise RuntimeError("the service answers otherwise after the overload than before")
    if not (peak and first.good and seen.good):
        raise SystemExit("too little was answered: give more --seconds")
    others = sum(len(times) for status, times in seen.answers.items() if status not in (200, 503)) + seen.broken
    shares = seen.rate(200) / peak, (seen.good / cpu) / (first.good / peak_cpu)
    return (
        f"{name:8} {peak:9.1f} {seen.offered / seconds:9.1f} {seen.unsent / seen.offered:7.1%} "
        f"{seen.rate(200):9.1f} {shares[0]:7.1%} {shares[1]:7.1%} "
        f"{seen.quantile(200, 0.5):8.1f} {seen.quantile(200, 0.99):8.1f} {seen.rate(503):9.1f} "
        f"{seen.quantile(503, 0.5):8.1f} {seen.quantile(503, 0.99):8.1f} {others:6} {grown / MIB:8.0f}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--seconds", type=float, default=8, help="of each part")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--times", type=float, default=4, help="the capacity")
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--budget", default="512MiB")
    parser.add_argument("--together", action="store_true", help="service and generator share all processors")


def run(options: argparse.Namespace) -> None:
    """Print a line for each piece of work."""
    print(f"memory budget {options.budget}, {options.times:g} times the capacity")
    print(
        "work          peak/s offered/s  unsent goodput/s of peak per CPU   p50 ms   p99 ms refused/s   p50 ms "
        "  p99 ms others grew MiB"
    )
    for name in options.work.split(","):
        for _ in range(options.rounds):
            print(measure(name, options.seconds, options.times, options.budget, options.together), flush=True)

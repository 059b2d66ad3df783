"""One request for the bags of 26 tables beside services that answer it with PyTorch, in the same run.

The tables and bags are those of MLPerf's DLRM-DCNv2. Rows of the table: one `/lookup`; the 26 single lookups that fetch
the rows, at a 26th of their rate; FastAPI and Triton, both with PyTorch's embedding_bag; and the floor, which takes and
gives as many bytes. The line below says how long a lookup of 256 rows takes alone, and beside such requests at a
quarter of their peak.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from benchmarks import common
from benchmarks.kernels.bags import BAGS, BATCH, WIDTH
from benchmarks.load_generator import generate, raw
from benchmarks.peers.triton_server import MISSING, triton_server
from benchmarks.work import OCTETS, SAFETENSORS, lua_of
from benchmarks.work import upload as upload_table

PEERS = Path(common.__file__).parent / "peers"
SINGLE_RATE = 100
"""Lookups of 256 rows a second whose time is looked at."""


class Asked:
    """The indices of a request, and the same request in each of the forms."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(7)
        self.rows = rows
        self.indices = [rng.integers(0, rows, BATCH * hot) for hot in BAGS]
        self.offsets = [np.arange(BATCH) * hot for hot in BAGS]

    def lookup(self) -> common.Request:
        """All bags of all tables in one request."""
        tensors: dict[str, Any] = {}
        for number, (indices, offsets) in enumerate(zip(self.indices, self.offsets, strict=True)):
            tensors |= {f"{number}.indices": indices, f"{number}.offsets": offsets}
        features = [{"tensor": f"table-{number}", "pooling": "sum"} for number in range(len(BAGS))]
        body = save(tensors, {"lookup": json.dumps({"features": features})})
        return common.Request("/lookup", body, SAFETENSORS)

    def singles(self) -> list[common.Request]:
        """The rows of each table, a request a table."""
        return [
            common.Request(f"/gather?tensor=table-{number}", save({"indices": indices}), SAFETENSORS)
            for number, indices in enumerate(self.indices)
        ]

    def words(self) -> bytes:
        """What the peers take: of each table offsets, then indices."""
        pairs = zip(self.offsets, self.indices, strict=True)
        return b"".join(part.tobytes() for pair in pairs for part in pair)

    def environ(self) -> dict[str, str]:
        """What the peers read of the work."""
        sizes = ",".join(map(str, BAGS))
        return {
            "LOOKUP_ROWS": str(self.rows),
            "LOOKUP_WIDTH": str(WIDTH),
            "LOOKUP_BAGS": str(BATCH),
            "LOOKUP_SIZES": sizes,
        }


def upload(port: int, work: Asked) -> None:
    """Every table, each with other rows."""
    for number in range(len(BAGS)):
        upload_table(port, np.random.default_rng(number).random((work.rows, WIDTH), np.float32), f"table-{number}")


def check(answer: bytes) -> None:
    """Raises RuntimeError unless the answer is the joined bags."""
    shape = load(answer)["output"].shape
    if shape != (BATCH, WIDTH * len(BAGS)):
        raise RuntimeError(f"the answer has shape {shape}")


def fastapi_command(python: str) -> Callable[[int], list[str]]:
    """One uvicorn process with the peer's application."""
    quiet = ["--log-level", "warning", "--no-access-log"]
    return lambda port: [python, "-m", "uvicorn", "fastapi_torch:app", "--port", str(port), *quiet]


def triton_request(words: bytes) -> common.Request:
    """The words as the protocol's binary data."""
    tensor = {"name": "words", "datatype": "INT64", "shape": [len(words) // 8]}
    inputs = [{**tensor, "parameters": {"binary_data_size": len(words)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return common.Request("/v2/models/bags/infer", head + words, headers)


def neighbours(port: int, request: common.Request, rate: float, seconds: float) -> tuple[float, float]:
    """Milliseconds for 99 of 100 lookups of 256 rows, alone and beside `rate` of these requests a second."""
    _, generators = common.halves()
    single = common.Request("/gather?tensor=table-0", save({"indices": np.arange(256)}), SAFETENSORS)
    alone = generate(generators, port, raw(single), seconds, SINGLE_RATE, 8)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(generate, generators, port, raw(request), seconds + 1, rate, 8)
        sleep(0.5)
        crowded = generate(generators, port, raw(single), seconds, SINGLE_RATE, 8)
        beside.result()
    return alone.quantile(200, 0.99), crowded.quantile(200, 0.99)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--fastapi", metavar="PYTHON", help="of an environment with fastapi, uvicorn and torch")
    parser.add_argument("--triton", metavar="PYTHON", help="of an environment with nvidia-pytriton and torch")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000)


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    work = Asked(options.rows)
    rows: dict[str, common.Figures] = {}
    lookup, singles, seconds = work.lookup(), work.singles(), options.seconds
    delays: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        with common.serving(common.gathernd_command) as port:
            upload(port, work)
            answer = common.post(port, lookup)
            check(answer)
            size = len(answer)
            common.better(rows, "gathernd, one /lookup", common.wrk(port, lookup, seconds=seconds))
            quarter = rows["gathernd, one /lookup"].rate / 4
            delays.append(neighbours(port, lookup, quarter, seconds))
            with tempfile.TemporaryDirectory() as folder:
                script = lua_of([one.body for one in singles], folder, [one.path for one in singles])
                found = common.wrk(port, singles[0], seconds=seconds, script=script)
            figures = common.Figures(found.rate / len(BAGS), found.p50, found.p99, found.errors, found.requests)
            common.better(rows, "gathernd, 26 lookups", figures)
        with common.serving(common.uvicorn_command(common.ENDPOINT), ready="/0") as port:
            same = common.Request(f"/{size}", lookup.body, lookup.headers)
            common.better(rows, "floor", common.wrk(port, same, seconds=seconds))
        if options.fastapi:
            with common.serving(fastapi_command(options.fastapi), environ=work.environ(), cwd=PEERS, limit=180) as port:
                request = common.Request("/lookup", work.words(), OCTETS)
                common.better(rows, "FastAPI, torch", common.wrk(port, request, seconds=seconds))
        if options.triton:
            with triton_server(options.triton, "bags", environ=work.environ()) as port:
                common.better(rows, "Triton, torch", common.wrk(port, triton_request(work.words()), seconds=seconds))
    if not options.fastapi:
        print("FastAPI is left out: --fastapi names the Python of an environment with fastapi, uvicorn and torch")
    if not options.triton:
        print(MISSING)
    print(common.table("26 tables, bags of DLRM-DCNv2", rows, [name for name in rows if "one" not in name]))
    alone, beside = (median(times) for times in zip(*delays, strict=True))
    longer = ", ".join(f"{crowded / lonely:.2f}" for lonely, crowded in delays if lonely)
    print(
        f"256 rows alone: p99 {alone:.2f} ms; beside a quarter of the peak: {beside:.2f} ms, by rounds {longer} times"
    )

"""One request for the bags of 26 tables beside the services that answer it with torch, in the same run.

    python -m benchmarks.lookup_service [--fastapi PYTHON] [--triton PYTHON] [--seconds 6] [--rounds 1] [--rows 100000]

The tables and bags are those of MLPerf's DLRM-DCNv2 (see `benchmarks.lookup`). Rows of the table: the request as one
`/lookup`; the 26 single lookups that fetch the rows, a 26th of their rate; FastAPI and Triton's Python backend, both
with torch's embedding_bag, where an interpreter is named that has fastapi, uvicorn and torch, and one that has
nvidia-pytriton and torch; and the bare endpoint that takes and gives as many bytes. The lines below say how much longer
a lookup of 256 rows takes beside such requests at a quarter of their peak, what the time of the kernel and the bare
endpoint allow together, and what part of that the service reaches.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from benchmarks import common
from benchmarks.lookup import BAGS, BATCH, WIDTH
from benchmarks.overload import generate, raw

HERE = Path(__file__).parent / "lookup_peers"
NATIVE = {"Content-Type": "application/x-safetensors"}
SINGLE_RATE = 100
"""Lookups of 256 rows a second whose time is looked at."""


class Work:
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
        return common.Request("/lookup", body, NATIVE)

    def singles(self) -> list[common.Request]:
        """The rows of each table, a request a table."""
        return [
            common.Request(f"/gather?tensor=table-{number}", save({"indices": indices}), NATIVE)
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


def upload(port: int, work: Work) -> None:
    """Every table, each with other rows."""
    for number in range(len(BAGS)):
        file = io.BytesIO()
        np.save(file, np.random.default_rng(number).random((work.rows, WIDTH), np.float32))
        kind = {"Content-Type": "application/x-npy"}
        common.post(port, common.Request(f"/tensors/table-{number}", file.getvalue(), kind, "PUT"))


def check(answer: bytes) -> None:
    """Raises RuntimeError unless the answer is the joined bags."""
    shape = load(answer)["output"].shape
    if shape != (BATCH, WIDTH * len(BAGS)):
        raise RuntimeError(f"the answer has shape {shape}")


def cycling(requests: list[common.Request], folder: str) -> str:
    """Lua for wrk: these requests, one after the other."""
    for number, request in enumerate(requests):
        (Path(folder) / str(number)).write_bytes(request.body)
    paths = ", ".join(f'"{request.path}"' for request in requests)
    return f"""
local paths, bodies, turn = {{{paths}}}, {{}}, 0
for number = 0, {len(requests) - 1} do
  local part = io.open("{folder}/" .. number, "rb")
  bodies[number + 1] = part:read("*a")
  part:close()
end
function request()
  turn = turn % #paths + 1
  return wrk.format("POST", paths[turn], nil, bodies[turn])
end
"""


def fastapi_command(python: str) -> Callable[[int], list[str]]:
    """One uvicorn process with the peer's application."""
    quiet = ["--log-level", "warning", "--no-access-log"]
    return lambda port: [python, "-m", "uvicorn", "fastapi_torch:app", "--port", str(port), *quiet]


def triton_command(python: str, environ: dict[str, str]) -> Callable[[int], list[str]]:
    """Triton with its Python backend, out of the package nvidia-pytriton of an environment."""
    home = Path(python).parent.parent
    (server,) = home.glob("lib/python3*/site-packages/pytriton/tritonserver")
    environ["LD_LIBRARY_PATH"] = f"{sys.base_prefix}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environ["PYTHONPATH"] = str(server.parent.parent)
    environ["PATH"] = f"{home / 'bin'}:{os.environ['PATH']}"
    return lambda port: [
        str(server / "bin/tritonserver"),
        f"--model-repository={HERE / 'triton'}",
        f"--backend-directory={server / 'backends'}",
        f"--http-port={port}",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]


def triton_request(words: bytes) -> common.Request:
    """The words as the protocol's binary data."""
    tensor = {"name": "words", "datatype": "INT64", "shape": [len(words) // 8]}
    inputs = [{**tensor, "parameters": {"binary_data_size": len(words)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return common.Request("/v2/models/lookup/infer", head + words, headers)


def kernel_seconds(port: int, request: common.Request, times: int = 30) -> float:
    """The least time that the service's own kernel took, as its Server-Timing says."""
    least = float("inf")
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(times):
        connection.request("POST", request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        answer.read()
        timing = dict(part.strip().split(";dur=") for part in (answer.headers["server-timing"] or "").split(","))
        least = min(least, float(timing["kernel"]) / 1e3)
    connection.close()
    return least


def neighbours(port: int, request: common.Request, rate: float, seconds: float) -> tuple[float, float]:
    """Milliseconds for 99 of 100 lookups of 256 rows, alone and beside `rate` of these requests a second."""
    _, generators = common.halves()
    single = common.Request("/gather?tensor=table-0", save({"indices": np.arange(256)}), NATIVE)
    alone = generate(generators, port, raw(single), seconds, SINGLE_RATE, 8)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(generate, generators, port, raw(request), seconds + 1, rate, 8)
        sleep(0.5)
        crowded = generate(generators, port, raw(single), seconds, SINGLE_RATE, 8)
        beside.result()
    return alone.quantile(200, 0.99), crowded.quantile(200, 0.99)


def better(rows: dict[str, common.Figures], name: str, figures: common.Figures) -> None:
    """Keep the best of the rounds."""
    if name not in rows or figures.rate > rows[name].rate:
        rows[name] = figures


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastapi", help="interpreter with fastapi, uvicorn and torch")
    parser.add_argument("--triton", help="interpreter of an environment with nvidia-pytriton and torch")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    print(common.machine_line())
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as cache:
        subprocess.run([common.gathernd_command(0)[0], "warm", "--cache-dir", cache], check=True)
        measure(options, cache)


def measure(options: argparse.Namespace, cache: str) -> None:
    """Print the table; `cache` has the compiled kernels, which a first start makes while it already answers."""
    work = Work(options.rows)
    rows: dict[str, common.Figures] = {}
    lookup, singles, seconds = work.lookup(), work.singles(), options.seconds
    size, kernel = 0, float("inf")
    delays: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        with common.serving(common.gathernd_command, environ={"GATHERND_CACHE_DIR": cache}, limit=120) as port:
            upload(port, work)
            answer = common.post(port, lookup)
            check(answer)
            size = len(answer)
            kernel = min(kernel, kernel_seconds(port, lookup))
            better(rows, "gathernd, one /lookup", common.wrk(port, lookup, seconds=seconds))
            quarter = rows["gathernd, one /lookup"].rate / 4
            delays.append(neighbours(port, lookup, quarter, seconds))
            with tempfile.TemporaryDirectory() as folder:
                script = cycling(singles, folder)
                found = common.wrk(port, singles[0], seconds=seconds, script=script)
            figures = common.Figures(found.rate / len(BAGS), found.p50, found.p99, found.errors, found.requests)
            better(rows, "gathernd, 26 lookups", figures)
        with common.serving(common.uvicorn_command("benchmarks.bare:app"), environ={"BARE_BYTES": str(size)}) as port:
            better(rows, "bare endpoint", common.wrk(port, lookup, seconds=seconds))
        if options.fastapi:
            with common.serving(fastapi_command(options.fastapi), environ=work.environ(), cwd=HERE, limit=180) as port:
                binary = {"Content-Type": "application/octet-stream"}
                request = common.Request("/lookup", work.words(), binary)
                better(rows, "FastAPI, torch", common.wrk(port, request, seconds=seconds))
        if options.triton:
            environ = work.environ()
            command = triton_command(options.triton, environ)
            with common.serving(command, environ=environ, ready="/v2/health/ready", limit=180) as port:
                better(rows, "Triton, torch", common.wrk(port, triton_request(work.words()), seconds=seconds))
    print(common.table("26 tables, bags of DLRM-DCNv2", rows, [name for name in rows if "one" not in name]))
    alone, beside = (median(times) for times in zip(*delays, strict=True))
    longer = ", ".join(f"{crowded / lonely:.2f}" for lonely, crowded in delays)
    print(
        f"256 rows alone: p99 {alone:.2f} ms; beside a quarter of the peak: {beside:.2f} ms, by rounds {longer} times"
    )
    allowed = 1 / (1 / rows["bare endpoint"].rate + kernel)
    reached = rows["gathernd, one /lookup"].rate
    print(
        f"the kernel takes {kernel * 1e6:,.0f} µs; with the bare endpoint that allows {allowed:,.0f} requests/s, "
        f"of which the service reaches {reached / allowed:.2f}"
    )


if __name__ == "__main__":
    main()

"""The service beside its peers on the same work in the same run: tiny and large inline gathers, and table lookups.

python -m benchmarks.peers --kit FOLDER --environments FOLDER [--peers triton,mlserver,redis] [--seconds 6] [--rounds 1]

The kit holds `run_peer.sh`, which starts one peer from the environments, drives it with wrk (one thread, 16
connections) and prints one JSON line for each piece of work. The work: `tiny json` is the specification's first
example inline; `lookup` is 256 int64 indices into a resident 200,000 x 64 float32 table (64 KiB out); `inline 4 MB
binary` is 1000 x 1000 float32 and 10,000 tuples of 2. The floor is a bare endpoint of the same uvicorn that takes and
gives as many bytes. Redis's row, one MGET of the same rows, is driven by redis-benchmark, and the service has a row
with two workers.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import numpy as np
from safetensors.numpy import save

from benchmarks import common

ROWS, WIDTH, PICK = 200_000, 64, 256
NATIVE = {"Content-Type": "application/x-safetensors"}
JSON = {"Content-Type": "application/json"}


def protocol_json(*inputs: tuple[str, str, np.ndarray[Any, Any]]) -> bytes:
    """An infer request with all tensors as JSON."""
    members = [
        {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
        for name, datatype, array in inputs
    ]
    return json.dumps({"inputs": members}).encode()


def protocol_binary(path: str, *inputs: tuple[str, str, np.ndarray[Any, Any]]) -> common.Request:
    """An infer request with all tensors as binary data, which asks for binary output."""
    members = [
        {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, datatype, array in inputs
    ]
    head = json.dumps({"inputs": members, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return common.Request(path, head + b"".join(array.tobytes() for _, _, array in inputs), headers)


def work() -> Iterator[tuple[str, str, common.Request]]:
    """Each piece of work, the way it is asked of the service, and the request."""
    data, indices = np.arange(4, dtype=np.int32).reshape(2, 2), np.array([[0, 0], [1, 1]])
    tiny = {
        "data": {"dtype": "int32", "shape": [2, 2], "values": [0, 1, 2, 3]},
        "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
    }
    yield "tiny json", "native", common.Request("/gathernd", json.dumps(tiny).encode(), JSON)
    body = protocol_json(("data", "INT32", data), ("indices", "INT64", indices))
    yield "tiny json", "protocol", common.Request("/v2/models/gathernd/infer", body, JSON)
    picked = np.random.default_rng(8).integers(0, ROWS, (PICK, 1))
    values = {"dtype": "int64", "shape": [PICK, 1], "values": picked.ravel().tolist()}
    lookup = json.dumps({"data": {"tensor": "items"}, "indices": values}).encode()
    yield "lookup json", "native", common.Request("/gathernd", lookup, JSON)
    body = protocol_json(("indices", "INT64", picked))
    yield "lookup json", "protocol", common.Request("/v2/models/items/infer", body, JSON)
    yield "lookup binary", "native", common.Request("/gathernd?tensor=items", save({"indices": picked}), NATIVE)
    yield "lookup binary", "protocol", protocol_binary("/v2/models/items/infer", ("indices", "INT64", picked))
    rng = np.random.default_rng(9)
    large, tuples = rng.random((1000, 1000), dtype=np.float32), rng.integers(0, 1000, (10_000, 2))
    yield "inline 4 MB binary", "native", common.Request("/gathernd", save({"data": large, "indices": tuples}), NATIVE)
    inputs = (("data", "FP32", large), ("indices", "INT64", tuples))
    yield "inline 4 MB binary", "protocol", protocol_binary("/v2/models/gathernd/infer", *inputs)


def upload(port: int) -> None:
    """Make the table of the lookups resident."""
    body = io.BytesIO()
    np.save(body, np.random.default_rng(7).random((ROWS, WIDTH), dtype=np.float32))
    url = f"http://127.0.0.1:{port}/tensors/items"
    with urlopen(UrlRequest(url, body.getvalue(), {"Content-Type": "application/x-npy"}, method="PUT")) as answer:
        answer.read()


def better(best: dict[str, common.Figures], name: str, figures: common.Figures) -> None:
    """Keep the better of two measurements."""
    if name not in best or figures.rate > best[name].rate:
        best[name] = figures


def measure_peer(kit: Path, environments: Path, name: str) -> Iterator[tuple[str, common.Figures]]:
    """What one peer reaches on each piece of work that it has."""
    command = [str(kit / "run_peer.sh"), str(environments), name]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        found = json.loads(line)
        if "rps" in found:
            yield (
                found["work"],
                common.Figures(
                    found["rps"],
                    found.get("p50_ms", float("nan")),
                    found.get("p99_ms", float("nan")),
                    found.get("bad", 0),
                    found.get("n", 0),
                ),
            )


def main() -> None:
    """Measure everything in turns and print one table for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, required=True, help="folder of run_peer.sh")
    parser.add_argument("--environments", type=Path, required=True, help="folder of the peers' environments")
    parser.add_argument("--peers", default="triton,mlserver")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    print(common.machine_line())
    found: dict[str, dict[str, common.Figures]] = {}
    sizes: dict[str, int] = {}
    for _ in range(options.rounds):
        with common.serving(common.gathernd_command, limit=120) as port:
            upload(port)
            for name, way, request in work():
                sizes[name] = len(common.post(port, request))
                figures = common.wrk(port, request, seconds=options.seconds)
                better(found.setdefault(name, {}), f"gathernd, {way}", figures)
        with common.serving(common.gathernd_command, environ={"GATHERND_WORKERS": "2"}, limit=120) as port:
            upload(port)
            for name, way, request in work():
                if way == "native":
                    figures = common.wrk(port, request, seconds=options.seconds)
                    better(found[name], "gathernd, 2 workers", figures)
        for name, way, request in work():
            if way == "native":
                environ = {"BARE_BYTES": str(sizes[name])}
                with common.serving(common.uvicorn_command("benchmarks.bare:app"), environ=environ) as port:
                    better(found[name], "bare", common.wrk(port, request, seconds=options.seconds))
        for peer in filter(None, options.peers.split(",")):
            for name, figures in measure_peer(options.kit, options.environments, peer):
                better(found.setdefault(name, {}), peer, figures)
    for name, rows in found.items():
        baselines = [row for row in rows if not row.startswith("gathernd")]
        print()
        print(common.table(name, rows, baselines))


if __name__ == "__main__":
    main()

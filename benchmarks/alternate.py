"""Two checkouts of the service in turns on the same work: is the newer one as fast as the older one?

python -m benchmarks.alternate OLD NEW [--alternations 20] [--seconds 1] [--work "tiny JSON,scatter"]

OLD and NEW are folders of checkouts, such as git worktrees of two commits. Each is served by its own `.venv`, or else
by the Python that runs this. Both services run at once on one half of the processors and wrk on the other; one is
driven while the other waits. After half of the alternations both are started anew in the other order, since the service
that starts second is up to 15% slower on some work. A figure is the median of the ratios new/old: 0.97 is 3% slower.
The ratios are of requests a second, and of requests a second of processor time, which other processes disturb less.
wrk drives HTTP, and a small client in this process gRPC.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save

from benchmarks import common, work

PUT_NAMES = 64
PUT_SCRIPT = """
local count = 0
function request()
  count = count + 1
  return wrk.format(nil, string.format("%s-%d%s", "/tensors/small", count % {names}, "?dtype=float32&shape=256"), nil,
    string.format("%08d", count) .. wrk.body:sub(9))
end
"""
PIPELINED = 16
PIPELINE_SCRIPT = """
local requests
function init()
  requests = string.rep(wrk.format(), {count})
end
function request()
  return requests
end
"""


FRESH_SCRIPT = """
local count, packed = 0, wrk.body:sub(-{room})
function request()
  count = count + 1
  local items = {least} + count % {lengths}
  local head = string.format('{head}', count, items, 8 * items)
  wrk.headers["Inference-Header-Content-Length"] = #head
  return wrk.format(nil, nil, nil, head .. packed:sub(1, 8 * items))
end
"""
"""An infer request with another id, and another number of indices, in every call."""
FRESH_LOOKUP_SCRIPT = """
local count, values = 0, "{values}"
function request()
  count = count + 1
  local items = {least} + count % {lengths}
  local indices = string.format('{{"dtype":"int64","shape":[%d],"values":[%s]}}', items, values:sub(1, 4 * items - 1))
  local one = '{{"tensor":"items","pooling":"sum","offsets":{{"dtype":"int64","shape":[2],"values":[0,2]}},"indices":'
    .. indices .. "}}"
  return wrk.format(nil, nil, nil, '{{"features":[' .. string.rep(one, {tables}, ",") .. "]}}")
end
"""
"""A lookup of many tables with another number of indices in every call."""
TABLES = 26
LEAST, LENGTHS = 32, 64
IN_FLIGHT = 16


class Driven(NamedTuple):
    """A piece of work: the request and what more wrk is told of it. One with a `message` is a call of gRPC."""

    request: common.Request
    script: str = ""
    message: bytes = b""


class Turn(NamedTuple):
    """What one service did in one turn: requests a second, and requests a second of its processor time."""

    rate: float
    rate_cpu: float


class Ratio(NamedTuple):
    """Of the paired ratios new/old: the median and both quartiles."""

    median: float
    low: float
    high: float


def all_work() -> dict[str, Driven]:
    """What is measured, by name. The lookups and the scatter use the table `items`."""
    made = work.all_work(work.table())
    rng = np.random.default_rng(10)
    changes: dict[str, np.ndarray[Any, Any]] = {
        "indices": rng.integers(0, work.ROWS, (16, 1)),
        "updates": rng.random((16, work.WIDTH), np.float32),
    }
    scatter = common.Request("/tensors/items/scatter", save(changes), work.SAFETENSORS)
    small = rng.random(256, np.float32).tobytes()
    put = common.Request("/tensors/small-0?dtype=float32&shape=256", small, work.OCTETS, method="PUT")
    return {
        "tiny JSON": Driven(made["tiny json"].request),
        "pipelined JSON": Driven(made["tiny json"].request, PIPELINE_SCRIPT.replace("{count}", str(PIPELINED))),
        "large JSON": Driven(common.Request("/gathernd", large_json())),
        "JSON lookup": Driven(made["lookup json"].request),
        "binary lookup": Driven(made["lookup binary"].request),
        "4 MB inline": Driven(made["inline 4 MB binary"].request),
        "scatter": Driven(scatter),
        "small PUT": Driven(put, PUT_SCRIPT.replace("{names}", str(PUT_NAMES))),
        "v2 lookup": Driven(made["lookup binary"].protocol),
        "v2 fresh": Driven(made["lookup binary"].protocol, fresh_script()),
        "26 tables": Driven(common.Request("/lookup", lookup_json())),
        "26 fresh": Driven(common.Request("/lookup", lookup_json()), fresh_lookup_script()),
        "gRPC lookup": Driven(common.Request("/readyz", b"", {}, "GET"), message=infer_message()),
    }


def fresh_script() -> str:
    """What has wrk send binary lookups that differ in their ids and lengths."""
    head = (
        '{"id":"%d","inputs":[{"name":"indices","datatype":"INT64","shape":[%d,1],'
        '"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}'
    )
    numbers = {"room": 8 * work.PICK, "least": LEAST, "lengths": LENGTHS}
    script = FRESH_SCRIPT.replace("{head}", head)
    for name, number in numbers.items():
        script = script.replace(f"{{{name}}}", str(number))
    return script


def lookup_json() -> bytes:
    """A lookup of many bags, each pooled to a row."""
    indices = {"dtype": "int64", "shape": [8], "values": list(range(100, 108))}
    offsets = {"dtype": "int64", "shape": [2], "values": [0, 2]}
    feature = {"tensor": "items", "indices": indices, "pooling": "sum", "offsets": offsets}
    return json.dumps({"features": [feature] * TABLES}).encode()


def fresh_lookup_script() -> str:
    """What has wrk send lookups that differ in the lengths of their arrays."""
    values = ",".join(str(100 + number) for number in range(LEAST + LENGTHS))
    return FRESH_LOOKUP_SCRIPT.format(values=values, least=LEAST, lengths=LENGTHS, tables=TABLES)


def infer_message() -> bytes:
    """A lookup as a message of gRPC."""
    from tritonclient.grpc import service_pb2  # noqa: PLC0415  (only this work needs it)

    message = service_pb2.ModelInferRequest(model_name="items")
    message.inputs.add(name="indices", datatype="INT64", shape=[work.PICK, 1])
    message.raw_input_contents.append(np.random.default_rng(8).integers(0, work.ROWS, work.PICK).tobytes())
    written: bytes = message.SerializeToString()
    return written


def call_grpc(port: int, message: bytes, seconds: float) -> int:
    """Send `message` again and again, some calls at a time, and return how many were answered."""
    import grpc  # noqa: PLC0415  (only this work needs it)

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        under_way = deque(call.future(message) for _ in range(IN_FLIGHT))
        answered, end = 0, perf_counter() + seconds
        while under_way:
            under_way.popleft().result()
            answered += 1
            if perf_counter() < end:
                under_way.append(call.future(message))
    return answered


def large_json() -> bytes:
    """A gather of half of 200,000 numbers."""
    rng = np.random.default_rng(11)
    data = {"dtype": "float32", "shape": [25_000, 8], "values": rng.random(200_000, np.float32).tolist()}
    indices = {"dtype": "int64", "shape": [12_500, 1], "values": rng.permutation(25_000)[:12_500].tolist()}
    return json.dumps({"data": data, "indices": indices}).encode()


def command(folder: Path, cores: set[int]) -> Callable[[int], list[str]]:
    """How to serve the checkout in `folder` on `cores`; it has to be started there."""
    python, flags = python_of(folder), ["serve", "--host", "127.0.0.1", "--port"]
    return lambda port: [*common.on(cores), python, "-m", "app.cli", *flags, str(port)]


def python_of(folder: Path) -> str:
    """The interpreter of a checkout's own environment, where it has one."""
    own = folder / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def turn(port: int, piece: Driven, seconds: float, warm: int = 3, grpc_port: int = 0) -> Turn:
    """Drive one service. Raises RuntimeError where a request failed."""
    before = common.processor_time(port)
    if piece.message:
        answered = call_grpc(grpc_port, piece.message, seconds)
        return Turn(answered / seconds, answered / (common.processor_time(port) - before))
    figures = common.wrk(port, piece.request, seconds=seconds, warm=warm, script=piece.script)
    spent = common.processor_time(port) - before
    if figures.errors or not figures.requests or not spent:
        raise RuntimeError(f"{figures.errors} of {figures.requests} requests failed, {spent} s of processor time")
    return Turn(figures.rate, figures.requests / spent)


def alternate(one_turn: Callable[[str], Turn], alternations: int) -> list[tuple[Turn, Turn]]:
    """Pairs of turns (old, new); which goes first changes from pair to pair."""
    pairs = []
    for at in range(alternations):
        if at % 2:
            new = one_turn("new")
            pairs.append((one_turn("old"), new))
        else:
            old = one_turn("old")
            pairs.append((old, one_turn("new")))
    return pairs


def paired(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """Median and quartiles of the ratios new/old of each pair."""
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return Ratio(median(ratios), low, high)


def row(name: str, pairs: Sequence[tuple[Turn, Turn]]) -> list[str]:
    """A line of the table: the medians of both rates, and the paired ratios with their quartiles."""
    old, new = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rate = paired([turn.rate for turn in old], [turn.rate for turn in new])
    cpu = paired([turn.rate_cpu for turn in old], [turn.rate_cpu for turn in new])
    medians = [f"{median(turn.rate for turn in turns):,.0f}" for turns in (old, new)]
    return [name, *medians, *(f"{ratio.median:.3f} ({ratio.low:.3f} .. {ratio.high:.3f})" for ratio in (rate, cpu))]


HEAD = ["", "old req/s", "new req/s", "new/old: rate", "new/old: per CPU second"]
WIDTHS = [14, 11, 11, 25, 25]


def line(cells: Sequence[str]) -> str:
    """The cells below those of HEAD: the first to the left, the others to the right."""
    others = map(str.rjust, cells[1:], WIDTHS[1:])
    return cells[0].ljust(WIDTHS[0]) + "".join(others)


def start(stack: ExitStack, folder: Path, cache: Path, cores: set[int]) -> tuple[int, int]:
    """Serve a checkout on `cores` until `stack` ends: its ports for HTTP and gRPC, with the tensors uploaded."""
    # A first start compiles for a while when it already answers.
    warm = [python_of(folder), "-m", "app.cli", "warm", "--cache-dir", str(cache)]
    subprocess.run(warm, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    grpc_port = common.free_port()
    environ = {"GATHERND_CACHE_DIR": str(cache), "GATHERND_GRPC_PORT": str(grpc_port)}
    port = stack.enter_context(common.serving(command(folder, cores), environ=environ, limit=240, cwd=folder))
    work.upload(port, work.table())
    return port, grpc_port


def main() -> None:
    """Measure and print one line for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--alternations", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1, help="of each turn, at least 1")
    parser.add_argument("--work", default="")
    parser.add_argument("--json", type=Path, help="write all turns to this file too")
    options = parser.parse_args()
    pieces = all_work()
    names = options.work.split(",") if options.work else list(pieces)
    if unknown := set(names) - set(pieces):
        parser.error(f"unknown work {', '.join(sorted(unknown))}; there is {', '.join(pieces)}")
    if options.alternations < 2:
        parser.error("at least 2 alternations are needed")
    print(common.machine_line())
    print(f"{options.alternations} alternations of {options.seconds:g} s; median (quartiles) of the paired ratios")
    print(line(HEAD))
    folders = {"old": options.old.resolve(), "new": options.new.resolve()}
    every: dict[str, list[tuple[Turn, Turn]]] = {name: [] for name in names}
    served, driving = common.halves()
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="gathernd-alternate-") as caches:
        for half, order in enumerate((("old", "new"), ("new", "old"))):
            with ExitStack() as stack:
                started = {side: start(stack, folders[side], Path(caches, side), served) for side in order}
                os.sched_setaffinity(0, driving)

                def one_turn(piece: Driven, side: str, started: Mapping[str, tuple[int, int]] = started) -> Turn:
                    port, grpc_port = started[side]
                    return turn(port, piece, options.seconds, grpc_port=grpc_port)

                for name in names:
                    for side in order:
                        one_turn(pieces[name], side)  # warms up, and does not count
                    every[name] += alternate(partial(one_turn, pieces[name]), (options.alternations + half) // 2)
                    if half:
                        print(line(row(name, every[name])), flush=True)
            os.sched_setaffinity(0, everywhere)
    if options.json:
        options.json.write_text(json.dumps(every))


if __name__ == "__main__":
    main()
